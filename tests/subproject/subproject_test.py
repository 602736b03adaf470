#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A project that takes this one in with add_subdirectory gets the library, and none of our own flags.

usage: subproject_test.py CMAKE SOURCE COMPILER
"""
import json
import pathlib
import shlex
import subprocess
import sys
import tempfile

OURS = ("-W", "-ffp-contract", "-fsanitize", "-DNM_", "-DFMT_")


def main():
    cmake, source, compiler = sys.argv[1:]
    here = pathlib.Path(__file__).resolve().parent
    with tempfile.TemporaryDirectory() as folder:
        configured = subprocess.run([cmake, "-G", "Ninja", "-S", here, "-B", folder, f"-DNPUMOE={source}",
                                     f"-DCMAKE_CXX_COMPILER={compiler}"], capture_output=True, text=True, check=False)
        if configured.returncode != 0:
            print(configured.stdout + configured.stderr)
            return 1
        entries = json.loads(pathlib.Path(folder, "compile_commands.json").read_text(encoding="utf-8"))
        user = [entry for entry in entries if entry["file"] == str(here / "user.cc")]
        library = [entry for entry in entries if entry["file"].endswith("/src/base/check.cc")]
        tests = [entry["file"] for entry in entries if entry["file"].endswith("_test.cc")]
        assert len(user) == 1 and len(library) == 1 and not tests, (user, library, tests)
        # Ours has them, so that what is looked for is what there is.
        for prefix in ("-W", "-ffp-contract", "-DFMT_"):
            assert any(word.startswith(prefix) for word in shlex.split(library[0]["command"])), (prefix, library)
        words = shlex.split(user[0]["command"])
        taken = [word for word in words if word.startswith(OURS)]
        assert not taken, f"flags of ours reach a user: {taken}"
        included = [word.removeprefix("-I") for word in words if word.startswith("-I")]
        assert included == [str(pathlib.Path(source, "include"))], included
        compiled = subprocess.run(words + ["-fsyntax-only"], cwd=user[0]["directory"], capture_output=True, text=True,
                                  check=False)
        assert compiled.returncode == 0 and not compiled.stderr, compiled.stderr
    print("the user's own flags: " + " ".join(words))
    return 0


if __name__ == "__main__":
    sys.exit(main())
