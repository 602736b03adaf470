#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The command line from outside: exit codes, streams, signals, hostile input.

usage: cli_test.py NPUMOE GROUP [TEST]      exit 77 when all of the group is skipped
"""
import sys
import unittest

from bench import Bench
from calibrate import Calibrate
from chat import Chat
from estimate import Estimate
from eval import Eval
from golden import Golden
from models import Info, MakeModel
from npu import Npu
from packages import Exec
from plan import Doctor, Plan
from programs import Cache, Programs
from report import Report
from run_text import Run
from simulate import Simulate
from streams import Streams
from usage import Usage

GROUPS = {group.__name__: group for group in (Usage, Run, Streams, Chat, Info, Exec, MakeModel, Bench, Golden, Calibrate,
                                             Plan, Doctor, Npu, Programs, Cache, Estimate, Simulate, Report, Eval)}


def main():
    if len(sys.argv) not in (3, 4) or sys.argv[2] not in GROUPS:
        print(__doc__ + "groups:", ", ".join(GROUPS))
        return 2
    group = GROUPS[sys.argv[2]]
    tests = unittest.defaultTestLoader.loadTestsFromTestCase(group)
    if len(sys.argv) == 4:
        tests = unittest.TestSuite([group(sys.argv[3])])
    result = unittest.TextTestRunner(stream=sys.stdout, verbosity=2).run(tests)
    if result.wasSuccessful() and result.testsRun == 0 and result.skipped:
        return 77
    return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
