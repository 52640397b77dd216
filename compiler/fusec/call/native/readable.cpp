// What kernels can read: tensors of torch's own dense kind whose memory is there. A library of its
// own, as it needs torch's headers; called by readable.py.
//
// Fake and functional tensors, subclasses with rules of their own, those of a transform, views
// whose sign or conjugation is still to be done, tensors with a tangent of forward-mode AD, those
// whose memory was freed or cut: for each of them eager does something else than read memory, or
// says why it does not.

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/UndefinedTensorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>

namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;

// As in tensors.cpp.
struct DLTensor {
  void* data;
  struct { int32_t type, id; } device;
  int32_t ndim;
  struct { uint8_t code, bits; uint16_t lanes; } dtype;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
};

struct Exchange {
  struct { uint32_t major, minor; void* previous; } header;
  void *allocate, *from_object, *to_object;
  int (*view)(void* object, DLTensor* out);
  void* stream;
};

constexpr DispatchKeySet kPlain({DispatchKey::CPU, DispatchKey::CUDA, DispatchKey::HIP,
                                 DispatchKey::ADInplaceOrView, DispatchKey::AutogradCPU,
                                 DispatchKey::AutogradCUDA, DispatchKey::AutogradHIP,
                                 DispatchKey::AutocastCPU, DispatchKey::AutocastCUDA});
PyTypeObject *tensor_type = nullptr, *base_type = nullptr;
Py_ssize_t place = 0;  // of the pointer in a Python tensor
int32_t processor = 0, gpu = 0;  // DLPack's numbers of the devices

// Where a Python tensor holds torch's own, which is a counted pointer; null for other objects.
c10::TensorImpl** holder_of(PyObject* object) {
  if (Py_TYPE(object) != tensor_type && !PyType_IsSubtype(Py_TYPE(object), base_type)) {
    return nullptr;
  }
  return reinterpret_cast<c10::TensorImpl**>(reinterpret_cast<char*>(object) + place);
}

// Whether operators go to somebody else first, such as a mode of fake tensors.
bool is_mode_on() {
  return c10::impl::tls_local_dispatch_key_set().included_.has(DispatchKey::Python);
}

// Whether all elements lie within the storage.
bool has_memory(const c10::TensorImpl* tensor) {
  if (!tensor->has_storage()) return false;
  int64_t last = 0;
  auto sizes = tensor->sizes(), strides = tensor->strides();
  for (size_t i = 0; i < sizes.size(); i++) {
    if (sizes[i] == 0) return true;
    last += (sizes[i] - 1) * strides[i];
  }
  uint64_t elements = static_cast<uint64_t>(tensor->storage_offset() + last) + 1;
  return elements * tensor->itemsize() <= tensor->unsafe_storage().nbytes();
}

// Whether forward-mode AD carries a derivative along with the tensor; there is one level of it, 0.
// at::TensorBase and at::Tensor, which c10 only declares, are what a holder is: the pointer.
bool has_tangent(c10::TensorImpl* const* holder) {
  const c10::TensorImpl* tensor = *holder;
  if (!tensor->autograd_meta()) return false;  // autograd never had to do with it
  const auto& self = *reinterpret_cast<const at::TensorBase*>(holder);
  const at::Tensor& tangent = tensor->_fw_grad(0, self);
  return *reinterpret_cast<c10::TensorImpl* const*>(&tangent) !=
         static_cast<c10::TensorImpl*>(c10::UndefinedTensorImpl::singleton());
}

bool is_plain(const c10::TensorImpl* tensor) {
  return (tensor->key_set().raw_repr() & ~kPlain.raw_repr()) == 0 &&
         !tensor->has_symbolic_sizes_strides() && has_memory(tensor);
}

uint8_t code_of(c10::ScalarType type) {
  if (type == c10::kBool) return 6;
  if (type == c10::kBFloat16) return 4;
  if (c10::isComplexType(type)) return 5;
  if (c10::isFloatingType(type)) return 2;
  return c10::isIntegralType(type, false) && !c10::isSignedType(type) ? 1 : 0;
}

// Describe a plain tensor's memory; -1 for every other object.
int view(void* object, DLTensor* out) {
  try {
    c10::TensorImpl* const* holder = holder_of(static_cast<PyObject*>(object));
    if (!holder || is_mode_on() || !is_plain(*holder) || has_tangent(holder)) return -1;
    c10::TensorImpl* tensor = *holder;
    c10::ScalarType type = c10::typeMetaToScalarType(tensor->dtype());
    out->data = tensor->numel() ? tensor->mutable_data() : nullptr;
    c10::Device device = tensor->device();
    out->device = {device.is_cpu() ? processor : gpu, device.is_cpu() ? 0 : device.index()};
    out->ndim = static_cast<int32_t>(tensor->dim());
    out->dtype = {code_of(type), static_cast<uint8_t>(tensor->itemsize() * 8), 1};
    out->shape = const_cast<int64_t*>(tensor->sizes().data());
    out->strides = const_cast<int64_t*>(tensor->strides().data());
    out->byte_offset = 0;
    return 0;
  } catch (...) {
    return -1;
  }
}

Exchange exchange = {{1, 0, nullptr}, nullptr, nullptr, nullptr, view, nullptr};

}  // namespace

// Returns a capsule with `view`, as torch's own is; called once a process, holding the interpreter's
// lock.
extern "C" PyObject* fusec_readable(PyObject* tensor, PyObject* base, Py_ssize_t offset,
                                    int32_t processor_number, int32_t gpu_number) {
  tensor_type = reinterpret_cast<PyTypeObject*>(Py_NewRef(tensor));
  base_type = reinterpret_cast<PyTypeObject*>(Py_NewRef(base));
  place = offset;
  processor = processor_number;
  gpu = gpu_number;
  return PyCapsule_New(&exchange, "dlpack_exchange_api", nullptr);
}
