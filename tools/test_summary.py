#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Adds up what ctest reported for several builds.

usage: test_summary.py NAME=REPORT.xml ... [broken=WHAT ...]
Prints skipped tests with their reasons, then failed ones, then 'N passed, N failed, N skipped'. Exit 1 if anything
failed, a report is missing or a build ran no tests.
"""
import re
import sys
import xml.etree.ElementTree as ElementTree

GTEST_SKIP = re.compile(r": Skipped\n(.*)")
SCRIPT_SKIP = re.compile(r"(?i)skipped:? *(.*)")


def reason_of(case):
    output = case.findtext("system-out") or ""
    match = GTEST_SKIP.search(output) or SCRIPT_SKIP.search(output)
    return match[1].strip() if match and match[1].strip() else "no reason given"


def read(name, path):
    """Returns (passed, failed, skipped) as lists of names; skipped as (reason, name)."""
    try:
        cases = ElementTree.parse(path).getroot().findall("testcase")
    except (OSError, ElementTree.ParseError) as error:
        return [], [f"{name}: no report: {error}"], []
    passed, failed, skipped = [], [], []
    for case in cases:
        label = f"{name}: {case.get('name')}"
        if case.get("status") == "run":
            passed.append(label)
        elif case.find("skipped") is not None and case.get("status") == "notrun" and not is_missing(case):
            skipped.append((reason_of(case), label))
        else:
            failed.append(label)
    if not cases:
        failed.append(f"{name}: no tests were found")
    return passed, failed, skipped


def is_missing(case):
    """A test whose program was not built did not run either; that is no skip."""
    return "SKIP" not in (case.find("skipped").get("message") or "")


def main():
    passed, failed, skipped = [], [], []
    for argument in sys.argv[1:]:
        name, _, value = argument.partition("=")
        if name == "broken":
            failed.append(value)
            continue
        for total, part in zip((passed, failed, skipped), read(name, value)):
            total += part
    if not passed and not failed:
        failed.append("nothing ran")
    reasons = {}
    for reason, label in skipped:
        reasons.setdefault(reason, []).append(label)
    for reason, labels in sorted(reasons.items()):
        shown = ", ".join(labels[:3]) + (f" and {len(labels) - 3} more" if len(labels) > 3 else "")
        print(f"skipped {len(labels)}: {reason} ({shown})")
    for label in failed:
        print(f"FAILED {label}")
    print(f"{len(passed)} passed, {len(failed)} failed, {len(skipped)} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
