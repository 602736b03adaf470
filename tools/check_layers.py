#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds the source tree to its own rules: includes only go down, files stay short, every file says its licence.

    tools/check_layers.py [ROOT]       prints what breaks a rule; exit 1 if anything does
    tools/check_layers.py --self-test  plants one breach of every rule and demands that it is found
"""
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

# Folder -> level. A file may include its own folder and folders of a lower level; equals do not see each other.
LEVEL = {
    "base": 0, "tensor": 1, "kernels": 2, "graph": 2, "format": 2, "npu": 3, "model": 3, "moe": 4, "engine": 5, "simulate": 5,
    "eval": 6, "report": 6, "server": 6, "apps": 7,
}
# Folders that see less than their level allows. "npumoe" is include/npumoe.
ONLY = {"apps": {"npumoe"}, "server": {"npumoe", "base"}}
# Public headers by the lowest level that may include them.
PUBLIC_LEVEL = {"result.h": 0, "files.h": 0, "go_on.h": 0, "make_model.h": 3, "mlpackage.h": 3, "npu.h": 3, "estimate.h": 3, "programs.h": 3, "plan.h": 5,
                "engine.h": 5, "calibrate.h": 5, "self_test.h": 5, "simulate.h": 5, "eval.h": 6,
                "report.h": 6}
# Third-party headers by the only folders that may include them. Others (fmt, nlohmann) are free below include/.
THIRD_PARTY = {"hwy": {"kernels"}, "Accelerate": {"kernels"}, "cblas.h": {"kernels"}, "CLI": {"apps"}, "pcre2.h": {"format"}, "utf8proc.h": {"format"},
               "google": {"graph"}}

MAX_LINES = 700
MAX_PLATFORM_LINES = 4  # more wants a file per platform, picked in CMake
SPDX = "SPDX-License-Identifier: Apache-2.0"

CODE = {".h", ".cc", ".mm", ".py", ".cmake", ".sh", ".mjs"}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
PLATFORM = re.compile(r"^\s*#\s*(?:if|ifdef|ifndef|elif)\b.*(?:__APPLE__|__linux__|_WIN32|__ANDROID__)")


def home_of(path):
    """Folder of the layer table that a relative path belongs to, or None where no include rule applies."""
    parts = path.parts
    if parts[0] == "src" and len(parts) > 2:
        return parts[1]
    return {"apps": "apps", "include": "include"}.get(parts[0])


def check_include(path, home, bracket, name):
    """Returns what is wrong with one #include, or None."""
    parts = name.split("/")
    if home == "include":
        if parts[0] == "npumoe" and len(parts) == 2:
            return None
        # A C++ standard header is one word in angle brackets.
        if bracket == "<" and re.fullmatch(r"[a-z_]+", name):
            return None
        return f"public header may include only npumoe/ and the C++ standard library, not {name}"
    if parts[0] in THIRD_PARTY:
        homes = THIRD_PARTY[parts[0]]
        return None if home in homes else f"only {', '.join(sorted(homes))} may include {name}"
    if bracket == "<":
        return None
    if len(parts) == 1:
        return f'includes "{name}" without its folder'
    folder = parts[0]
    if folder == home:
        return None
    if folder == "npumoe":
        needed = PUBLIC_LEVEL.get(parts[1])
        if needed is None:
            return f"npumoe/{parts[1]} has no level in PUBLIC_LEVEL"
        return None if LEVEL[home] >= needed else f"{home} may not include npumoe/{parts[1]} (level {needed})"
    if folder not in LEVEL:
        return f"includes {name}: {folder}/ is no folder of the layer table"
    is_test = path.stem.endswith("_test") and home not in ONLY
    # A test may hold a sibling against its subject, but still looks at nothing above it.
    allowed = LEVEL[folder] <= LEVEL[home] if is_test else LEVEL[folder] < LEVEL[home]
    if not allowed or (home in ONLY and folder not in ONLY[home]):
        return f"{home} may not include {folder}/"
    return None


def check_file(path, text):
    """All breaches in one file; `path` is relative to the root."""
    lines = text.splitlines()
    bad = []
    if len(lines) > MAX_LINES:
        bad.append(f"{path}:{MAX_LINES + 1}: file has {len(lines)} lines, limit {MAX_LINES}")
    if not any(SPDX in line for line in lines[:3]):
        bad.append(f"{path}:1: no '{SPDX}' in the first three lines")
    if path.suffix not in {".h", ".cc", ".mm"}:
        return bad
    if path.suffix == ".h" and not path.name.endswith("-inl.h") and "#pragma once" not in text:
        bad.append(f"{path}:1: header without #pragma once")
    platform = [n for n, line in enumerate(lines, 1) if PLATFORM.match(line)]
    if len(platform) > MAX_PLATFORM_LINES:
        bad.append(f"{path}:{platform[MAX_PLATFORM_LINES]}: {len(platform)} platform conditions, "
                   f"limit {MAX_PLATFORM_LINES}: give each platform a file and pick it in CMake")
    home = home_of(path)
    if home is None:
        return bad
    if home != "include" and home not in LEVEL:
        return bad + [f"{path}:1: {home}/ is no folder of the layer table"]
    for number, line in enumerate(lines, 1):
        match = INCLUDE.match(line)
        problem = match and check_include(path, home, *match.groups())
        if problem:
            bad.append(f"{path}:{number}: {problem}")
    return bad


def source_files(root):
    """Source files below `root`, as git sees them where there is git: ignored build folders do not count."""
    listed = subprocess.run(["git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                            capture_output=True, check=False)
    if listed.returncode == 0:
        names = [name for name in listed.stdout.decode().split("\0") if name]
    else:
        names = [str(p.relative_to(root)) for p in pathlib.Path(root).rglob("*") if p.is_file()]
    for name in sorted(set(names)):
        path = pathlib.Path(name)
        is_script = path.parent.name in {"scripts", ".ci"} and not path.suffix
        is_code = path.suffix in CODE or path.name == "CMakeLists.txt" or is_script
        skipped = path.parts[0] in {"build", "models"} or "node_modules" in path.parts
        if is_code and not skipped and (pathlib.Path(root) / path).is_file():
            yield path


def check_tree(root):
    bad, n_files = [], 0
    for path in source_files(root):
        n_files += 1
        bad += check_file(path, (pathlib.Path(root) / path).read_text(encoding="utf-8", errors="replace"))
    return bad, n_files


class SelfTest(unittest.TestCase):
    """Every rule is seen to fail once."""

    HEAD = f"// {SPDX}\n"

    def problems(self, name, body, head=HEAD):
        return check_file(pathlib.Path(name), head + body)

    def assert_one(self, name, body, part, head=HEAD):
        found = self.problems(name, body, head)
        self.assertEqual(len(found), 1, found)
        self.assertIn(part, found[0])
        self.assertTrue(found[0].startswith(name + ":"), found[0])

    def test_includes_that_go_down_are_fine(self):
        for name, body in [
            ("src/base/a.cc", '#include "base/a.h"\n#include <vector>\n#include "npumoe/result.h"\n'),
            ("src/graph/a.cc", '#include "tensor/tensor.h"\n'),
            ("src/engine/a.cc", '#include "moe/router.h"\n#include "npumoe/engine.h"\n'),
            ("src/model/a.cc", '#include "npumoe/make_model.h"\n#include "format/gguf.h"\n'),
            ("src/server/a.cc", '#include "npumoe/engine.h"\n#include "base/files.h"\n'),
            ("apps/npumoe/a.cc", '#include "npumoe/engine.h"\n#include "apps/npumoe/text.h"\n#include <fmt/core.h>\n'),
            ("src/format/a_test.cc", '#include "kernels/matmul.h"\n'),
            ("tests/all.cc", '#include "engine/engine.h"\n#include "base/files.h"\n'),
        ]:
            self.assertEqual(self.problems(name, body), [], name)

    def test_an_include_that_goes_up(self):
        self.assert_one("src/base/a.cc", '#include "tensor/tensor.h"\n', ":2: base may not include tensor/")

    def test_siblings(self):
        self.assert_one("src/graph/a.cc", '#include "kernels/matmul.h"\n', "graph may not include kernels/")
        self.assert_one("src/npu/a.cc", '  # include "model/config.h"\n', "npu may not include model/")

    def test_apps_and_server_see_the_public_headers_only(self):
        self.assert_one("apps/npumoe/a.cc", '#include "base/files.h"\n', "apps may not include base/")
        self.assert_one("apps/npumoe/a_test.cc", '#include "base/files.h"\n', "apps may not include base/")
        self.assert_one("src/server/a.cc", '#include "engine/engine.h"\n', "server may not include engine/")

    def test_a_test_looks_at_nothing_above_it(self):
        self.assert_one("src/format/a_test.cc", '#include "engine/engine.h"\n', "format may not include engine/")

    def test_public_headers_have_levels_too(self):
        self.assert_one("src/model/a.cc", '#include "npumoe/engine.h"\n', "model may not include npumoe/engine.h")
        self.assert_one("src/model/a.cc", '#include "npumoe/new.h"\n', "no level in PUBLIC_LEVEL")

    def test_public_headers_include_no_third_party(self):
        once = "#pragma once\n"
        self.assertEqual(self.problems("include/npumoe/a.h", once + '#include <span>\n#include "npumoe/b.h"\n'), [])
        for line in ["#include <fmt/core.h>\n", "#include <unistd.h>\n", '#include "base/check.h"\n']:
            self.assert_one("include/npumoe/a.h", once + line, "public header may include only")

    def test_third_party_headers_stay_where_they_belong(self):
        self.assertEqual(self.problems("src/kernels/a.cc", '#include "hwy/highway.h"\n#include <fmt/core.h>\n'), [])
        self.assert_one("src/engine/a.cc", "#include <hwy/highway.h>\n", "only kernels may include hwy/highway.h")
        self.assert_one("src/model/a.cc", "#include <CLI/CLI.hpp>\n", "only apps may include CLI/CLI.hpp")

    def test_unknown_folders(self):
        self.assert_one("src/base/a.cc", '#include "fmt/core.h"\n', "no folder of the layer table")
        self.assert_one("src/base/a.cc", '#include "check.h"\n', "without its folder")
        self.assert_one("src/misc/a.cc", "", "misc/ is no folder")

    def test_length(self):
        self.assertEqual(self.problems("src/base/a.cc", "\n" * (MAX_LINES - 1)), [])
        self.assert_one("src/base/a.cc", "\n" * MAX_LINES, "file has 701 lines, limit 700")

    def test_licence_line(self):
        self.assert_one("src/base/a.cc", "int x;\n", "no 'SPDX", head="")
        self.assert_one("tools/a.py", "x = 1\n", "no 'SPDX", head="")

    def test_pragma_once(self):
        self.assert_one("src/base/a.h", "int x;\n", "without #pragma once")

    def test_platform_conditions(self):
        pair = "#ifdef __APPLE__\n#endif\n#if defined(__linux__)\n#endif\n"
        self.assertEqual(self.problems("src/base/a.cc", pair + pair), [])
        self.assert_one("src/base/a.cc", pair + pair + "#elif defined(__APPLE__)\n",
                        ":10: 5 platform conditions, limit 4")

    def test_a_tree_is_walked_and_build_folders_are_not(self):
        with tempfile.TemporaryDirectory() as root:
            for name in ["src/base/a.cc", "build/b.cc", "scripts/go", "notes.txt"]:
                path = pathlib.Path(root, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text("nothing\n", encoding="utf-8")
            bad, n_files = check_tree(root)
            self.assertEqual(n_files, 2)
            self.assertEqual([line.split(":")[0] for line in bad], ["scripts/go", "src/base/a.cc"])


def main():
    if "--self-test" in sys.argv[1:]:
        unittest.main(argv=sys.argv[:1])
    root = sys.argv[1] if len(sys.argv) > 1 else str(pathlib.Path(__file__).resolve().parent.parent)
    bad, n_files = check_tree(root)
    if n_files == 0:
        bad.append(f"{root}: no source files found")
    print("\n".join(bad) if bad else f"{n_files} files keep the rules")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
