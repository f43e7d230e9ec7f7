"""Helpers of the exercises' tests. Most run in the worker, on the learner's objects.

They only observe and hand back plain data; the verdict is the grader's.
"""
