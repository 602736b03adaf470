#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Breaks coreml_device.mm in one place after another and demands that coreml_device_test notices every time.

    mutations.py BUILD SOURCE [NAME...]   BUILD: a build folder of Ninja in which coreml_device_test is built
"""
import concurrent.futures
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile

# Name, text that occurs once, what takes its place.
MUTATIONS = [
    # References.
    ("nothing is released", "~Kept() { [object_ release]; }", "~Kept() {}"),
    ("kept objects are not retained", "object_([object retain])", "object_(object)"),
    ("moved references stay", "object_(std::exchange(other.object_, nil))", "object_(other.object_)"),
    ("an array leaks", "error:&error] autorelease];\n  if (array == nil)", "error:&error] self];\n  if (array == nil)"),
    ("the options leak", "[[[MLPredictionOptions alloc] init] autorelease]", "[[MLPredictionOptions alloc] init]"),
    ("the features leak", "initWithDictionary:arrays error:&error] autorelease]",
     "initWithDictionary:arrays error:&error] self]"),
    ("the configuration leaks", "[[[MLModelConfiguration alloc] init] autorelease]",
     "[[MLModelConfiguration alloc] init]"),
    ("the result is released twice", "return Kept(result);", "[result release];\n    return Kept(result);"),
    ("the handler's object is released twice", ": Kept(object));", ": Kept([object autorelease]));"),
    ("a string leaks", "return [NSString stringWithUTF8String:text.c_str()];",
     "return [[NSString alloc] initWithUTF8String:text.c_str()];"),
    ("numbers leak", "[NSMutableArray arrayWithCapacity:values.size()]",
     "[[NSMutableArray alloc] initWithCapacity:values.size()]"),
    ("no pool", "  @autoreleasepool {\n    @try {", "  {\n    @try {"),
    # Errors.
    ("nothing is caught", "@catch (NSException* exception)", "@catch (NSString* exception)"),
    ("messages of several lines", "< ' '; }, ' ')", "< 1; }, ' ')"),
    ("the cause is lost", "return cause == nil ? words :", "return cause != nil ? words :"),
    ("missing outputs are not noticed", "if (array == nil) return MakeError(Code::kDevice, \"{}: gave no",
     "if (false) return MakeError(Code::kDevice, \"{}: gave no"),
    # Types and shapes.
    ("any type will do", "if (type == DataTypeOf(tensor.type) && ", "if ("),
    ("any shape will do", " && [shape isEqualToArray:Numbers(tensor.type.dims)]", ""),
    ("descriptions are not looked at", 'NM_TRY(CheckArray(subject + ":", tensor, [array dataType], shape));', ""),
    ("outputs are not looked at",
     'NM_TRY(CheckArray(subject_ + ": output", output, [array dataType], [array shape]));', ""),
    ("too many features", "if ([descriptions count] != tensors.size())",
     "if ([descriptions count] < tensors.size())"),
    ("too few features", "if ([descriptions count] != tensors.size())",
     "if ([descriptions count] > tensors.size())"),
    ("sizes are not looked at", "NM_TRY(CheckSizes(subject_, function_, inputs, outputs));", ""),
    ("types are not looked at", "NM_TRY(CheckTypes(subject, function));", ""),
    ("shapes must be said", "[[array shape] count] > 0 ? [array shape]", "true ? [array shape]"),
    ("fp32 taken for fp16", "type.elem == ElemType::kF32 ? MLMultiArrayDataTypeFloat32",
     "false ? MLMultiArrayDataTypeFloat32"),
    # Memory.
    ("strides are ignored", "Integers([array strides])", "Integers(Numbers(DenseStrides(output.type.dims)))"),
    ("element size is ignored", "BitsOf(output.type.elem) / 8", "2"),
    ("in place without looking", "const bool in_place = bytes == to;", "const bool in_place = true;"),
    ("never in place", "const bool in_place = bytes == to;", "const bool in_place = bytes == nullptr;"),
    ("copies are not counted", "++(in_place ? counts->in_place : counts->copied);", "++counts->in_place;"),
    ("backings are not offered", "[options setOutputBackings:backings];", ""),
    ("the first input is every input", "Wrap(subject_, function_.inputs[i], inputs[i].data)",
     "Wrap(subject_, function_.inputs[i], inputs[0].data)"),
    ("the first output is every output", "function_.outputs[i], outputs[i].data));\n      return",
     "function_.outputs[i], outputs[0].data));\n      return"),
    # Configuration and versions.
    ("the GPU for the NPU", ": MLComputeUnitsCPUAndNeuralEngine];", ": MLComputeUnitsCPUAndGPU];"),
    ("all units for the NPU", ": MLComputeUnitsCPUAndNeuralEngine];", ": MLComputeUnitsAll];"),
    ("CPU and GPU for the CPU", "units == ComputeUnits::kCpuOnly     ? MLComputeUnitsCPUOnly",
     "units == ComputeUnits::kCpuOnly     ? MLComputeUnitsCPUAndGPU"),
    ("the default function", "[configuration setFunctionName:Text(function)];", ""),
    ("functions on macOS 14", "  if (@available(macOS 15.0, *)) {\n", "  if (@available(macOS 14.0, *)) {\n"),
    ("asynchronous on macOS 13", "if (@available(macOS 14.0, *)) {", "if (@available(macOS 13.0, *)) {"),
    ("plans on macOS 14.3", "if (@available(macOS 14.4, *)) {", "if (@available(macOS 14.3, *)) {"),
    ("described functions on macOS 14",
     "if (@available(macOS 15.0, *)) system", "if (@available(macOS 14.0, *)) system"),
    ("described plans on macOS 14.3", "if (@available(macOS 14.4, *)) system", "if (@available(macOS 14.3, *)) system"),
    # Placement.
    ("qualified names of ops", "name.substr(name.rfind('.') + 1)", "name"),
    ("the GPU counts as the NPU", 'DeviceName(device) == "NPU"', 'DeviceName(device) == "GPU"'),
    ("no costs", "placement.cost = ", "0 * "),
    ("the NPU is not known", 'return "NPU";', 'return "CPU";'),
    # Compiling.
    ("compiled in vain", "if ([files fileExistsAtPath:Text(compiled_path)])", "if (false)"),
    ("what cannot be moved stays", "[files removeItemAtURL:made error:nullptr];", ""),
    ("copied, not moved", "[files moveItemAtURL:made", "[files copyItemAtURL:made"),
]


def commands(build):
    """How the object is compiled and the program linked: two lists of words."""
    listed = subprocess.run(["ninja", "-C", build, "-t", "commands", "coreml_device_test"], capture_output=True,
                            text=True, check=True).stdout.splitlines()
    compile_line = next(line for line in listed if " -c " in line and line.endswith("coreml_device.mm"))
    link_line = listed[-1].removeprefix(": && ").removesuffix(" && :")
    compile_words = shlex.split(compile_line)
    while "clang" not in os.path.basename(compile_words[0]):  # env, ccache
        compile_words.pop(0)
    return compile_words + ["-O0", "-w"], shlex.split(link_line)


def with_precompiled_headers(build, compile_words, text, folder):
    """The words with all headers of the file compiled already: they are half of what every mutation takes."""
    header, compiled = pathlib.Path(folder, "headers.h"), str(pathlib.Path(folder, "headers.pch"))
    lines = [line for line in text.splitlines() if line.startswith(("#include", "#import"))]
    header.write_text("\n".join(lines) + "\n", encoding="utf-8")
    words = after(after(compile_words, "-o", compiled), "-c", str(header))
    words = after(after(words, "-x", "objective-c++-header"), "-MF", str(pathlib.Path(folder, "headers.d")))
    subprocess.run(words + ["-fpch-instantiate-templates"], cwd=build, check=True)
    return compile_words + ["-include-pch", compiled]


def after(words, flag, value):
    """The words with the one behind `flag` replaced."""
    return [value if words[i - 1] == flag else word for i, word in enumerate(words)]


def attempt(build, compile_words, link_words, text, folder):
    """Builds and runs with `text` in place of the file. Returns None when all is well, else what went wrong."""
    source, program = pathlib.Path(folder, "coreml_device.mm"), str(pathlib.Path(folder, "program"))
    source.write_text(text, encoding="utf-8")
    original = compile_words[compile_words.index("-o") + 1]
    changed = str(pathlib.Path(folder, "device.o"))
    words = after(after(compile_words, "-o", changed), "-c", str(source))
    words = after(words, "-MF", str(pathlib.Path(folder, "device.d")))
    built = subprocess.run(words, cwd=build, capture_output=True, text=True, check=False)
    if built.returncode != 0:
        raise RuntimeError("does not compile:\n" + built.stderr)
    words = [changed if word == original else word for word in after(link_words, "-o", program)]
    subprocess.run(words, cwd=build, capture_output=True, text=True, check=True)
    environment = dict(os.environ, TMPDIR=folder, TEST_TMPDIR=folder)
    try:
        ran = subprocess.run([program, "--gtest_brief=1", "--gtest_fail_fast"], cwd=build, capture_output=True,
                             text=True, errors="replace", timeout=120, env=environment, check=False)
    except subprocess.TimeoutExpired:
        return "hangs"
    if ran.returncode == 0:
        return None
    failed = [line for line in ran.stdout.splitlines() if line.startswith("[  FAILED  ]")]
    return failed[0].removeprefix("[  FAILED  ] ") if failed else f"exit code {ran.returncode}"


def main():
    build, source_dir, wanted = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3:]
    if not pathlib.Path(build, "build.ninja").exists():
        print("not a build folder of Ninja")
        return 77
    good = (source_dir / "src/npu/coreml_device.mm").read_text(encoding="utf-8")
    compile_words, link_words = commands(build)

    def run(mutation):
        name, old, new = mutation
        if good.count(old) != 1 and name:
            return name, RuntimeError(f"{good.count(old)} places to change, wanted 1: {old}")
        with tempfile.TemporaryDirectory() as folder:
            try:
                return name, attempt(build, compile_words, link_words, good.replace(old, new) if name else good, folder)
            except RuntimeError as error:
                return name, error

    headers = tempfile.TemporaryDirectory()
    compile_words = with_precompiled_headers(build, compile_words, good, headers.name)
    _, problem = run(("", "", ""))
    if problem is not None:
        print(f"the file as it is fails: {problem}")
        return 1
    missed = 0
    chosen = [m for m in MUTATIONS if not wanted or m[0] in wanted]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for name, found in pool.map(run, chosen):
            if found is None or isinstance(found, RuntimeError):
                missed += 1
                print(f"NOT NOTICED: {name}" + (f": {found}" if found else ""))
            else:
                print(f"noticed: {name}: {found}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} mutations are noticed")
    return 1 if missed or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
