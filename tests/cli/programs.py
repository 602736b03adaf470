# SPDX-License-Identifier: Apache-2.0
"""npumoe compile and cache."""
import json
import os
import re
import shutil
import signal
import subprocess

from harness import NPUMOE, SECONDS, Case, Running, clean_environment, npumoe, read_until

# So small a model runs on the CPU by choice.
ON_NPU = ["--placement", "tiers+groups", "--npu-chunk", "32"]


class Programs(Case):
    def compile(self, *args, code=0):
        done = npumoe("compile", "-m", self.model, *args, "--json")
        self.assertEqual(done.code, code, done.err)
        return json.loads(done.text()), done

    def test_packages_of_a_plan_are_written_run_and_kept(self):
        out = self.dir / "packages"
        report, done = self.compile("-o", out, *ON_NPU)
        self.assertEqual((report["npu"], report["compiled"]), ("m2-max", False))
        names = [program["name"] for program in report["programs"]]
        self.assertIn("attention_0", names)
        self.assertIn("experts_0_0", names)
        self.assertEqual(sorted(path.name for path in out.iterdir()), sorted(name + ".mlpackage" for name in names))
        self.assertEqual({program["kept"] for program in report["programs"]}, {False})
        lines = [line for line in done.lines if re.match(r"npumoe: compile: \d+ of \d+: \w+, .* made$", line)]
        self.assertEqual(len(lines), len(names), done.err)
        before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
        again, _ = self.compile("-o", out, *ON_NPU)
        self.assertEqual({program["kept"] for program in again["programs"]}, {True})
        self.assertEqual({path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}, before)
        # Another plan makes them anew.
        other, _ = self.compile("-o", out, "--placement", "tiers+groups", "--npu-chunk", "64")
        self.assertEqual({program["kept"] for program in other["programs"]}, {False})
        self.assertIn("function", self.ok("info", out / "experts_0_0.mlpackage").text())

    def test_what_somebody_damaged_is_made_anew(self):
        out = self.dir / "damaged"
        self.compile("-o", out, *ON_NPU)
        first, second = out / "experts_0_0.mlpackage", out / "experts_1_0.mlpackage"
        weights = first / "Data" / "com.apple.CoreML" / "weights" / "weight.bin"
        whole = weights.read_bytes()

        def cut():
            weights.write_bytes(whole[:1000])

        def exchange():
            shutil.rmtree(first)
            shutil.copytree(second, first)

        for damage in (cut, weights.unlink, exchange):
            damage()
            report, _ = self.compile("-o", out, *ON_NPU)
            made = [program["name"] for program in report["programs"] if not program["kept"]]
            self.assertEqual(made, ["experts_0_0"])
            self.assertEqual(weights.read_bytes(), whole)

    def test_leftovers_of_a_killed_process_go(self):
        out = self.dir / "leftovers"
        self.compile("-o", out, *ON_NPU)
        shutil.rmtree(out / "experts_0_0.mlpackage")
        old, young = out / "experts_0_0.mlpackage.tmp999999", out / "experts_0_0.mlpackage.tmp999998"
        for path in (old, young):
            path.mkdir()
        os.utime(old, (1, 1))
        self.compile("-o", out, *ON_NPU)
        self.assertEqual((old.exists(), young.exists()), (False, True))
        os.utime(young, (1, 1))
        self.compile("-o", out, *ON_NPU)  # keeps the package
        self.assertFalse(young.exists())

    def test_without_a_folder_they_lie_beside_the_model(self):
        self.ok("compile", self.model, *ON_NPU)
        self.assertTrue((self.dir / "tiny.npumoe" / "packages" / "attention_0.mlpackage").is_dir())

    def test_the_plan_says_for_which_npu(self):
        plan = self.dir / "m4.json"
        self.ok("plan", self.model, "--npu", "m4", "--placement", "tiers", "-o", plan)
        report, _ = self.compile("--plan", plan, "-o", self.dir / "m4")
        self.assertEqual((report["npu"], report["plan"]), ("m4", str(plan)))

    def test_an_interrupt_keeps_what_is_made(self):
        out = self.dir / "stopped"
        shape = ["--shape", "tiny-qwen3moe", "--layers", "40"]
        model = self.dir / "deep.gguf"
        self.ok("make-model", *shape, "-o", model)
        args = ["compile", "-m", model, "-o", out, "-j", "1", *ON_NPU]
        with Running([NPUMOE, *map(os.fspath, args)], env=clean_environment(), stdout=subprocess.PIPE,
                     stderr=subprocess.PIPE) as process:
            read_until(process.stderr.fileno(), lambda seen: seen.count(b" made\n") > 1)
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=SECONDS)
        self.assertEqual(process.returncode, 130, err)
        self.assertTrue(err.endswith(b"npumoe: interrupted: what is made is kept\n"), err)
        made = {path.name for path in out.iterdir()}
        self.assertTrue(all(name.endswith(".mlpackage") for name in made), made)
        report = json.loads(self.ok("compile", "-m", model, "-o", out, *ON_NPU, "--json").text())
        kept = {program["name"] + ".mlpackage" for program in report["programs"] if program["kept"]}
        self.assertEqual(kept, made)
        self.assertGreater(len(report["programs"]), len(made))

    def test_what_cannot_be(self):
        self.fails(1, "Core ML is not on this system", "compile", self.model, "--npu", "coreml")
        self.fails(2, "wants one of coreml, coreml:ane", "compile", self.model, "--npu", "tpu")
        self.fails(1, "cannot write", "compile", self.model, "-o", self.write("file", b"x") / "out")
        self.fails(2, "--parallel", "compile", self.model, "-j", "0")
        self.fails(1, "absent", "compile", "-m", self.dir / "absent.gguf")
        self.fails(1, "Core ML is not on this system", "run", self.model, "-p", "x", "--npu", "coreml:gpu")
        self.fails(2, "got 'coreml:tpu'", "run", self.model, "-p", "x", "--npu", "coreml:tpu")
        self.fails(1, "Core ML is not on this system", "plan", self.model, "--npu", "coreml")
        self.assertEqual(npumoe("compile-package").code, 2)
        done = npumoe("compile-package", "a", "b", "tpu")
        self.assertEqual((done.code, done.text().count("\n")), (1, 1))


class Cache(Case):
    def entry(self, key, failure=""):
        folder = self.dir / "cache" / "programs" / key
        folder.mkdir(parents=True)
        (folder / "program").write_bytes(b"x" * 2048)
        text = {"version": 1, "what": "experts_0_0, m4, ane", "size_bytes": 2048, "failure": failure}
        (folder / "entry.json").write_text(json.dumps(text))

    def cache(self, *args):
        return self.ok("cache", "--cache", self.dir / "cache", *args)

    def test_programs_are_listed_and_removed(self):
        self.assertRegex(self.cache("ls").text(), r"\A0 programs, 0 B in ")
        good, bad, other = "a" * 32, "b" * 32, "c" * 32
        self.entry(good)
        self.entry(bad, "ended by \x1b[31m signal 11")
        self.entry(other)
        shown = self.cache("ls").text()
        self.assertRegex(shown, rf"(?m)^{good}  \d{{4}}-\d\d-\d\d \d\d:\d\d +2.00 KiB  experts_0_0, m4, ane$")
        self.assertIn(r"failed: ended by \x1B[31m signal 11", shown)
        listed = json.loads(self.cache("ls", "--json").text())["programs"]
        self.assertEqual({program["key"] for program in listed}, {good, bad, other})
        self.assertEqual(self.cache("rm", "--failed").text(), "1 programs removed, 2.00 KiB\n")
        self.assertEqual(self.cache("rm", "aaaa").text(), "1 programs removed, 2.00 KiB\n")
        strange = self.dir / "cache" / "programs" / os.fsdecode(b"\xff\x1bodd")
        strange.mkdir()
        self.assertIn("damaged", self.cache("ls").text())
        self.assertEqual(len(json.loads(self.cache("ls", "--json").text())["programs"]), 2)
        strange.rmdir()
        self.assertEqual([p["key"] for p in json.loads(self.cache("ls", "--json").text())["programs"]], [other])
        self.assertEqual(self.cache("rm", "--all").text(), "1 programs removed, 2.00 KiB\n")

    def test_wrong_usage(self):
        folder = ["cache", "--cache", self.dir / "cache"]
        self.fails(2, "subcommand", *folder)
        self.fails(2, "wants keys, --failed or --all", *folder, "rm")
        self.fails(1, "0 programs begin so, wanted one", *folder, "rm", "ffff")
        self.entry("d" * 32)
        self.entry("d" * 31 + "e")
        self.fails(1, "2 programs begin so, wanted one", *folder, "rm", "dd")

    def test_the_environment_names_the_folder(self):
        done = npumoe("cache", "ls", env={"NPUMOE_CACHE": os.fspath(self.dir / "elsewhere")})
        self.assertIn(os.fspath(self.dir / "elsewhere"), done.text())
