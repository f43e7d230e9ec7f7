"""`python -m course` is `course`."""

import sys

from course.cli import main

sys.exit(main())
