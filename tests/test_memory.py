"""Any sequence of operations on tables, forks and the prefix cache, all at once."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from memory_model import Memory

tokens = st.lists(st.integers(0, 1), max_size=9)  # few, so that prefixes meet
index = st.integers(0, 5)
length = st.integers(0, 20)


class MemoryMachine(RuleBasedStateMachine):
    @initialize(num_blocks=st.integers(1, 8), block_size=st.integers(1, 4))
    def make(self, num_blocks, block_size):
        self.memory = Memory(num_blocks, block_size)

    @rule(prompt=tokens)
    def acquire(self, prompt):
        if len(self.memory.tables) < 6:
            self.memory.acquire(prompt)

    @rule(i=index, tokens=tokens)
    def append(self, i, tokens):
        self.on_table(i, self.memory.append, tokens)

    @rule(i=index)
    def copy_on_write(self, i):
        self.on_table(i, self.memory.copy_on_write)

    @rule(i=index)
    def fork(self, i):
        if len(self.memory.tables) < 6:
            self.on_table(i, self.memory.fork)

    @rule(i=index, num_tokens=length)
    def truncate(self, i, num_tokens):
        self.on_table(i, self.memory.truncate, num_tokens)

    @rule(i=index, position=length)
    def drop_before(self, i, position):
        self.on_table(i, self.memory.drop_before, position)

    @rule(i=index)
    def publish(self, i):
        self.on_table(i, self.memory.publish)

    @rule(i=index)
    def free(self, i):
        self.on_table(i, self.memory.free)

    @rule(n=st.integers(0, 9))
    def evict(self, n):
        self.memory.allocate_and_free(n)

    def on_table(self, i, operation, *arguments):
        if self.memory.tables:
            operation(i % len(self.memory.tables), *arguments)

    @invariant()
    def counts_free_list_and_contents_hold(self):
        self.memory.check()


TestAnySequenceOfOperations = pytest.mark.proof(MemoryMachine.TestCase)
TestAnySequenceOfOperations.settings = settings(max_examples=150, derandomize=True)
