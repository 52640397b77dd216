// What a call of compiled code costs is Python's bookkeeping: these files do that part natively.
//
// tensors.cpp     what a tensor is natively: where it is, and how it lies there
// system.cpp      what the operating system is asked for
// inputs.cpp      InputCheck: whether the inputs of a graph are what its kernels were compiled for
// results.cpp     ResultCheck: whether an operator's result is what the kernels after it were told
// program.cpp     Program: allocates outputs and runs the kernels of one graph, one after the other
// entry.cpp       Entry: one compiled form of a function: what must hold for it, what to run then
// dispatcher.cpp  Dispatcher: finds the entry that fits a call, or leaves it to the ordinary path
//
// These are compiled as one text, in this order. Another begins with the first three, for machines
// with a GPU alone:
//
// driver.cpp      Driver: the functions of the CUDA driver, looked up at run time
// plan.cpp        Plan: what a call of a graph on a GPU does, and how the driver is told
// chains.cpp      kernels in a row as one launch, where that is the quicker one
// plan_run.cpp    a plan run step by step or as a CUDA graph
// residents.cpp   what a graph keeps for backward, and who else holds it
// plan_type.cpp   the same as a Python type
// device.cpp      DeviceProgram: a graph on a GPU; finds the plan that fits the inputs
//
// They know Python's C interface and the DLPack standard, nothing of torch: torch's own checks come in
// as callables, so that the same text serves every release.

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <utility>
#include <vector>

namespace {

// --- DLPack: the one way to a tensor's memory that is a standard ------------------------------

struct DLTensor {
  void* data;
  struct { int32_t type, id; } device;
  int32_t ndim;
  struct { uint8_t code, bits; uint16_t lanes; } dtype;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
};

struct DLPackExchange {
  struct { uint32_t major, minor; void* previous; } header;
  void* allocate;
  void* from_object;
  void* to_object;
  int (*view)(void* object, DLTensor* out);
  void* stream;
};

using ViewFunction = int (*)(void* object, DLTensor* out);

// The function of torch's capsule that describes a tensor's memory; null where there is none.
ViewFunction view_of_capsule(PyObject* capsule) {
  if (capsule == Py_None) return nullptr;
  auto* exchange =
      static_cast<DLPackExchange*>(PyCapsule_GetPointer(capsule, "dlpack_exchange_api"));
  if (!exchange) PyErr_Clear();
  return exchange && exchange->header.major == 1 ? exchange->view : nullptr;
}


// The memory of a tensor; false, with an error set, if it has none.
bool find_address(PyObject* data_ptr, ViewFunction view_of, PyObject* tensor,
                  DLTensor* view, bool* viewed, void** out) {
  *viewed = view_of && view_of(tensor, view) == 0;
  if (*viewed) {
    *out = static_cast<char*>(view->data) + view->byte_offset;
    return true;
  }
  PyErr_Clear();
  PyObject* number = PyObject_CallOneArg(data_ptr, tensor);
  if (!number) return false;
  *out = PyLong_AsVoidPtr(number);
  Py_DECREF(number);
  return *out || !PyErr_Occurred();
}

// --- what the objects here take and hand out ----------------------------------------------------

// Whether an integer of a tuple is a position below `limit`.
bool position_of(PyObject* number, Py_ssize_t limit, Py_ssize_t* out) {
  *out = PyLong_AsSsize_t(number);
  if (*out >= 0 && *out < limit) return true;
  if (!PyErr_Occurred()) PyErr_SetString(PyExc_IndexError, "a position is out of range");
  return false;
}

// Read positions from `first` on and below `limit` from a tuple.
bool read_positions(PyObject* tuple, Py_ssize_t first, Py_ssize_t limit,
                    std::vector<Py_ssize_t>* out) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++) {
    Py_ssize_t position = PyLong_AsSsize_t(PyTuple_GET_ITEM(tuple, i));
    if (position < first || position >= limit) {
      if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "a position is out of range");
      return false;
    }
    out->push_back(position);
  }
  return true;
}

// Put copies of sets on outputs, which is how torch says that some of their sizes vary.
bool mark_outputs(PyObject* marks, PyObject* outputs) {
  if (!PyTuple_Check(marks)) return true;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(marks); i++) {
    Py_ssize_t position;
    PyObject *name, *dims;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(marks, i), "nOO", &position, &name, &dims)) return false;
    if (position < 0 || position >= PyList_GET_SIZE(outputs)) continue;
    PyObject* copy = PySet_New(dims);
    if (!copy) return false;
    int failed = PyObject_SetAttr(PyList_GET_ITEM(outputs, position), name, copy);
    Py_DECREF(copy);
    if (failed < 0) return false;
  }
  return true;
}

}  // namespace
