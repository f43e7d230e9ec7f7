"""What goes wrong with the grader itself. Light: every part of it may import this."""


class GraderError(Exception):
    """The grader failed: a test that breaks its contract, or a broken set-up.

    It is never the learner's fault and ends the grading.
    """


class UnknownNameError(GraderError, AttributeError):
    """A test touches a name that the exercise's contract does not have.

    Also an AttributeError, because tools ask any object for names of their own.
    """
