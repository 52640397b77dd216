// What a call of compiled code costs is Python's bookkeeping: these files do that part natively.
//
// tensors.cpp     what a tensor is natively: where it is, and how it lies there
// inputs.cpp      InputCheck: whether the inputs of a graph are what its kernels were compiled for
// results.cpp     ResultCheck: whether an operator's result is what the kernels after it were told
// program.cpp     Program: allocates outputs and runs the kernels of one graph, one after the other
// entry.cpp       Entry: one compiled form of a function: what must hold for it, what to run then
// driver.cpp      Driver: the functions of the CUDA driver, looked up at run time
// plan.cpp        Plan: what a call of a graph on a GPU does, and how the driver is told
// chains.cpp      kernels in a row as one launch, where that is the quicker one
// plan_run.cpp    a plan run step by step or as a CUDA graph
// residents.cpp   what a graph keeps for backward, and who else holds it
// plan_type.cpp   the same as a Python type
// device.cpp      DeviceProgram: a graph on a GPU; finds the plan that fits the inputs
// dispatcher.cpp  Dispatcher: finds the entry that fits a call, or leaves it to the ordinary path
//
// They are compiled as one text, in this order. They know Python's C interface and the DLPack
// standard, nothing of torch: torch's own checks come in as callables, so that the same text
// serves every release.

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>
#include <sys/mman.h>

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

}  // namespace
