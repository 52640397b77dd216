"""What a package's library has for C programs: guards, memory and a call, one function a program.

The table of guards is JSON for people and for Python; here the same guards are code, so that a
program in C needs to read nothing but the weights.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from fusec.packages.host_text import bytes_expression, c_text
from fusec.packages.plain_program import PlainProgram
from fusec.packages.runtime.expressions import text as words
from fusec.packages.runtime.layout import ITEM_BYTES

_MOST_DIMENSIONS = 8
_DTYPES = (
    "float64 float32 float16 bfloat16 int64 int32 int16 int8 uint64 uint32 uint16 uint8 bool"
).split()

HEAD = """\
#include "fuse.h"
#include <stdlib.h>

namespace {
thread_local const char* fuse_said = "";

int64_t fuse_fail(const char* why)
{
    fuse_said = why;
    return 1;
}

[[maybe_unused]] bool fuse_lies(const fuse_tensor& given, int32_t dtype, int32_t rank,
    const int64_t* shape, const int64_t* strides)
{
    if (given.dtype != dtype || given.rank != rank) return false;
    bool empty = false;
    for (int32_t i = 0; i < rank; ++i) {
        if (given.shape[i] != shape[i]) return false;
        empty |= shape[i] == 0;
    }
    for (int32_t i = 0; i < rank && !empty; ++i)
        if (shape[i] != 1 && given.strides[i] != strides[i]) return false;
    return true;
}

[[maybe_unused]] void fuse_describe(fuse_tensor& out, void* data, void* memory, int32_t dtype,
    int32_t rank, const int64_t* shape, const int64_t* strides)
{
    out.data = data;
    out.memory = memory;
    out.dtype = dtype;
    out.rank = rank;
    for (int32_t i = 0; i < rank; ++i) {
        out.shape[i] = shape[i];
        out.strides[i] = strides[i];
    }
}

[[maybe_unused]] void* fuse_memory(int64_t bytes)
{
    return aligned_alloc(64, (size_t)((bytes < 1 ? 1 : bytes) + 63) / 64 * 64);
}
} // namespace
"""


def c_entry(
    programs: Sequence[PlainProgram],
    steps: Sequence[Sequence[Mapping[str, Any]] | None],
    places: Sequence[int],
) -> str:
    """Return the C++ that ``fuse.h`` declares.

    Args:
        programs: Of the package.
        steps: What ``steps_json`` returned for each without torch; None where it needs torch.
        places: Of each weight, the first byte in the data of the weights' file.
    """
    parts = [HEAD]
    entries = []
    for number, (program, own) in enumerate(zip(programs, steps, strict=True)):
        why = _why_not(program, own)
        inputs = [g for g in program.guards if "dtype" in g]
        if why or own is None:
            body = f"    return fuse_fail({_quoted(why)});\n"
        else:
            body = _body(program, own, inputs, places)
        parts.append(
            f"static int64_t fuse_{number}_c(const fuse_tensor* in, int64_t count, "
            "const char* weights,\n    fuse_tensor* out, int64_t threads)\n{\n"
            "    (void)in; (void)count; (void)weights; (void)out; (void)threads;\n" + body + "}\n"
        )
        returned = len(program.outputs) - len(program.updates)
        entries.append((_quoted(program.name), len(inputs), returned, f"fuse_{number}_c"))
    parts.append(_table(entries))
    return "\n".join(parts)


def _table(entries: Sequence[tuple[str, int, int, str]]) -> str:
    def chosen(values: Sequence[object], other: str) -> str:
        cases = "".join(f" case {i}: return {value};" for i, value in enumerate(values))
        return f"{{ switch (program) {{{cases} }} return {other}; }}"

    names, inputs, outputs, functions = zip(*entries, strict=True)
    calls = [f"{f}(inputs, count, (const char*)weights, outputs, threads)" for f in functions]
    unknown = 'fuse_fail("there is no such program")'
    return (
        f"FUSE_API int64_t fuse_programs(void) {{ return {len(entries)}; }}\n"
        f"FUSE_API const char* fuse_name(int64_t program) {chosen(names, chr(34) * 2)}\n"
        f"FUSE_API int64_t fuse_inputs(int64_t program) {chosen(inputs, '-1')}\n"
        f"FUSE_API int64_t fuse_outputs(int64_t program) {chosen(outputs, '-1')}\n"
        "FUSE_API const char* fuse_problem(void) { return fuse_said; }\n"
        "FUSE_API int64_t fuse_run(int64_t program, const fuse_tensor* inputs, int64_t count, "
        "const void* weights,\n    fuse_tensor* outputs, int64_t threads)\n"
        f"{chosen(calls, unknown)}\n"
    )


def _quoted(value: str) -> str:
    plain = value.encode("ascii", "replace").decode("ascii")
    return json.dumps(plain).replace("??", "? ?")


def _why_not(program: PlainProgram, steps: Sequence[Mapping[str, Any]] | None) -> str:
    """Return why C cannot call a program; empty where it can."""
    if steps is None:
        return f"it needs torch: {'; '.join(program.needs_torch)}"
    if program.updates:
        return "it updates an argument in place, which is not offered to C yet"
    if len(steps) > 1:
        return "it has several parts"
    returned = [
        output.get("buffer") if isinstance(output, dict) else None for output in program.outputs
    ]
    if None in returned or len(set(returned)) != len(returned):
        return "it returns something other than tensors of their own"
    if any(size["dimension"] is None for size in program.sizes):
        return "it takes a size as a number"
    ranks = [len(buffer["shape"]) for buffer in program.buffers]
    ranks += [len(guard["shape"]) for guard in program.guards if "dtype" in guard]
    if max(ranks, default=0) > _MOST_DIMENSIONS:
        return f"it has tensors of more than {_MOST_DIMENSIONS} dimensions"
    return ""


def _body(
    program: PlainProgram,
    steps: Sequence[Mapping[str, Any]],
    inputs: Sequence[Mapping[str, Any]],
    places: Sequence[int],
) -> str:
    tensors = [leaf for leaf, guard in enumerate(program.guards) if "dtype" in guard]
    tensor_of = {leaf: i for i, leaf in enumerate(tensors)}
    names = {size["name"]: f"s[{i}]" for i, size in enumerate(program.sizes)}
    counted = _quoted(f"{len(inputs)} tensors are expected")
    lines = [
        f"if (count != {len(inputs)}) return fuse_fail({counted});",
        f"int64_t s[{max(len(program.sizes), 1)}] = {{}};",
    ]
    for i, size in enumerate(program.sizes):
        at, dim = tensor_of[size["leaf"]], size["dimension"]
        label = inputs[at]["name"]
        few = _quoted(f"{label} has too few dimensions")
        bound = _quoted(f"size {dim} of {label} is out of range")
        low, high = c_text(size["low"], names), c_text(size["high"], names)
        lines += [
            f"if (in[{at}].rank <= {dim}) return fuse_fail({few});",
            f"s[{i}] = in[{at}].shape[{dim}];",
            f"if (s[{i}] < {low} || s[{i}] > {high}) return fuse_fail({bound});",
        ]
    for at, guard in enumerate(inputs):
        shape = ", ".join(words(each) for each in guard["shape"])
        strides = ", ".join(words(each) for each in guard["strides"])
        why = _quoted(
            f"{guard['name']} is packaged for {guard['dtype']} ({shape}), strides ({strides})"
        )
        test = f"!fuse_lies(in[{at}], {_layout(guard)})"
        lines.append(f"{{ {_arrays(guard, names)} if ({test}) return fuse_fail({why}); }}")
    for condition in program.conditions:
        why = _quoted(f"the sizes must satisfy {condition['text']}")
        holds = _condition(condition["expression"], names)
        lines.append(f"if (!({holds})) return fuse_fail({why});")
    lines += _call(program, steps, tensor_of, names, places)
    return "".join(f"    {line}\n" for line in lines)


def _call(
    program: PlainProgram,
    steps: Sequence[Mapping[str, Any]],
    tensor_of: Mapping[int, int],
    names: Mapping[str, str],
    places: Sequence[int],
) -> list[str]:
    outputs = {output["buffer"]: i for i, output in enumerate(program.outputs)}
    known = {}
    lines = []
    for number, buffer in enumerate(program.buffers):
        if buffer["role"] == "input":
            known[number] = f"in[{tensor_of[buffer['source']]}].data"
        elif buffer["role"] == "weight":
            known[number] = f"(void*)(weights + {places[buffer['source']]})"
    if any(buffer["role"] == "weight" for buffer in program.buffers):
        lines.append('if (!weights) return fuse_fail("it needs the weights");')
    made = [n for n in outputs if n not in known]
    for n in made:
        size = c_text(bytes_expression(program.buffers[n]), names)
        lines.append(f"void* made{n} = fuse_memory({size});")
        known[n] = f"made{n}"
    freed = " ".join(f"free(made{n});" for n in made)
    if made:
        missing = " || ".join(f"!made{n}" for n in made)
        lines.append(f'if ({missing}) {{ {freed} return fuse_fail("no memory"); }}')
    for step in steps:
        function = step["function"]
        given = ", ".join(known[n] for n in step["buffers"])
        lines += [
            f"void* t[] = {{{given}}};",
            f"char* scratch = (char*)fuse_memory({function}_scratch(s));",
            f'if (!scratch) {{ {freed} return fuse_fail("no memory"); }}',
            f"const int64_t status = {function}(t, s, scratch, threads < 1 ? 1 : threads);",
            "free(scratch);",
            f"if (status) {{ {freed} return fuse_fail({_quoted(_stopped(step))}); }}",
        ]
    for n, i in outputs.items():
        output, buffer = program.outputs[i], program.buffers[n]
        view = {**buffer, **output}
        offset = c_text(output.get("offset", 0), names)
        data = f"(char*){known[n]} + {offset} * {ITEM_BYTES[buffer['dtype']]}"
        memory = known[n] if n in made else "nullptr"
        lines.append(
            f"{{ {_arrays(view, names)} fuse_describe(out[{i}], {data}, {memory}, "
            f"{_layout(view)}); }}"
        )
    return [*lines, "return 0;"]


def _stopped(step: Mapping[str, Any]) -> str:
    checks = [check for failure in step["failures"] for check in failure["checks"]]
    return f"a check in a kernel failed: {', '.join(dict.fromkeys(checks)) or 'no memory'}"


def _arrays(tensor: Mapping[str, Any], names: Mapping[str, str]) -> str:
    shape = ", ".join(c_text(each, names) for each in tensor["shape"]) or "0"
    strides = ", ".join(c_text(each, names) for each in tensor["strides"]) or "0"
    return f"const int64_t shape[] = {{{shape}}}, strides[] = {{{strides}}};"


def _layout(tensor: Mapping[str, Any]) -> str:
    dtype = tensor["dtype"]
    number = _DTYPES.index(dtype) if dtype in _DTYPES else len(_DTYPES)
    return f"{number}, {len(tensor['shape'])}, shape, strides"


def _condition(value: Any, names: Mapping[str, str]) -> str:
    if isinstance(value, list) and value[0] in ("and", "or"):
        sign = " && " if value[0] == "and" else " || "
        return sign.join(f"({_condition(each, names)})" for each in value[1:])
    if isinstance(value, list) and value[0] == "not":
        return f"!({_condition(value[1], names)})"
    return c_text(value, names)


__all__ = ["c_entry"]
