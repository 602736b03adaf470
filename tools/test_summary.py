#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Adds up what ctest reported for several builds.

usage: test_summary.py NAME=REPORT.xml ... [broken=WHAT ...]       or: test_summary.py --self-test
Prints skipped tests with their reasons, then failed ones, then 'N passed, N failed, N skipped'. Exit 1 if anything
failed, a report is missing or a build ran no tests.
"""
import contextlib
import io
import os
import re
import sys
import tempfile
import unittest
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


class SelfTest(unittest.TestCase):
    PASS = '<testcase name="p" status="run"/>'
    FAIL = '<testcase name="f" status="fail"><failure/></testcase>'
    SKIP = ('<testcase name="s" status="notrun"><skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/>'
            "<system-out>x.cc:3: Skipped\nno data\n</system-out></testcase>")
    SCRIPT = ('<testcase name="t" status="notrun"><skipped message="SKIP_RETURN_CODE=77"/>'
              "<system-out>skipped: no npm</system-out></testcase>")
    MISSING = '<testcase name="m_NOT_BUILT" status="notrun"><skipped message=""/></testcase>'

    def summary(self, *bodies, extra=()):
        with tempfile.TemporaryDirectory() as folder:
            arguments = []
            for i, body in enumerate(bodies):
                path = os.path.join(folder, f"{i}.xml")
                with open(path, "w", encoding="utf-8") as file:
                    file.write(body)
                arguments.append(f"b{i}={path}")
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                code = main([*arguments, *extra])
        return code, out.getvalue().splitlines()

    def suite(self, *cases):
        return "<testsuite>" + "".join(cases) + "</testsuite>"

    def test_counts_over_all_builds_and_gives_the_reasons(self):
        code, lines = self.summary(self.suite(self.PASS, self.SKIP), self.suite(self.PASS, self.SCRIPT))
        self.assertEqual((code, lines[-1]), (0, "2 passed, 0 failed, 2 skipped"))
        self.assertEqual(lines[:2], ["skipped 1: no data (b0: s)", "skipped 1: no npm (b1: t)"])

    def test_every_kind_of_failure_counts(self):
        for bodies, extra, failed in [
            ([self.suite(self.PASS, self.FAIL)], (), "FAILED b0: f"),
            ([self.suite(self.PASS, self.MISSING)], (), "FAILED b0: m_NOT_BUILT"),
            ([self.suite(self.PASS), self.suite()], (), "FAILED b1: no tests were found"),
            ([self.suite(self.PASS)], ["broken=asan build"], "FAILED asan build"),
            ([self.suite(self.PASS), "<cut"], (), "FAILED b1: no report: "),
            ([self.suite(self.PASS)], ["x=/nowhere.xml"], "FAILED x: no report: "),
        ]:
            code, lines = self.summary(*bodies, extra=extra)
            self.assertEqual((code, lines[-1]), (1, "1 passed, 1 failed, 0 skipped"))
            self.assertTrue(lines[0].startswith(failed), lines)
        self.assertEqual(self.summary()[0], 1)


def main(arguments):
    if arguments == ["--self-test"]:
        unittest.main(argv=sys.argv[:1])
    passed, failed, skipped = [], [], []
    for argument in arguments:
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
    sys.exit(main(sys.argv[1:]))
