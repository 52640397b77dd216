// Products of matrices between kernels, by ATen, as a native program calls them: with pointers, as it
// calls a kernel. A library of its own, as it needs torch's headers; called by products.py.
//
// Tensors over memory of the program's are made for the call, of torch's plain kind: autograd,
// autocast, transforms have nothing to do with them. The dispatcher is asked, so that profilers see it.

#include <c10/core/Scalar.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>

// these only declare what they take: after c10
#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/baddbmm_ops.h>
#include <ATen/ops/bmm_ops.h>
#include <ATen/ops/mm_ops.h>

#include <cstdint>
#include <string>

namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;

constexpr int kMostDims = 3;

enum Operator : int64_t { kMm, kBmm, kAddmm, kBaddbmm };

// As in products.py.
struct Operand {
  int64_t type;    // by its place in kTypes
  int64_t offset;  // bytes
  int64_t bytes;   // from there on to the last element's end
  int64_t dims, sizes[kMostDims], strides[kMostDims];
};

struct Product {
  int64_t which;
  double beta, alpha;
  Operand operands[4];  // what is added to, if something is; the two that are multiplied; the result
};

constexpr c10::ScalarType kTypes[] = {c10::kFloat, c10::kDouble, c10::kHalf, c10::kBFloat16};
thread_local std::string problem;

using Handle = c10::intrusive_ptr<c10::TensorImpl>;

Handle tensor_over(const Operand& operand, void* memory) {
  char* begin = static_cast<char*>(memory) + operand.offset;
  c10::Storage storage(c10::Storage::use_byte_size_t(), operand.bytes,
                       c10::DataPtr(begin, c10::Device(c10::DeviceType::CPU)), nullptr, false);
  auto made = c10::make_intrusive<c10::TensorImpl>(
      std::move(storage), DispatchKeySet(DispatchKey::CPU),
      c10::scalarTypeToTypeMeta(kTypes[operand.type]));
  size_t dims = static_cast<size_t>(operand.dims);
  made->set_sizes_and_strides({operand.sizes, dims}, {operand.strides, dims});
  return made;
}

// at::Tensor, which the operators' headers only declare, is what a handle is: the counted pointer.
at::Tensor& as_tensor(Handle& handle) { return reinterpret_cast<at::Tensor&>(handle); }

// All keys but those that a plain product on the CPU goes by. Without the bits of backends: up to torch
// 2.11 the guard's end leaves those in the thread's state.
DispatchKeySet others() {
  return DispatchKeySet(DispatchKeySet::RAW,
                        DispatchKeySet(DispatchKeySet::FULL).raw_repr() & ~c10::full_backend_mask)
      .remove(DispatchKey::CPU)
      .remove(DispatchKey::BackendSelect);
}

int multiply(const Product& product, void* added, void* left, void* right, void* result) {
  try {
    c10::impl::ExcludeDispatchKeyGuard alone(others());
    Handle a = tensor_over(product.operands[1], left), b = tensor_over(product.operands[2], right);
    Handle out = tensor_over(product.operands[3], result);
    if (product.which == kMm) {
      at::_ops::mm_out::call(as_tensor(a), as_tensor(b), as_tensor(out));
    } else if (product.which == kBmm) {
      at::_ops::bmm_out::call(as_tensor(a), as_tensor(b), as_tensor(out));
    } else {
      Handle to = tensor_over(product.operands[0], added);
      c10::Scalar beta(product.beta), alpha(product.alpha);
      auto call = product.which == kAddmm ? at::_ops::addmm_out::call : at::_ops::baddbmm_out::call;
      call(as_tensor(to), as_tensor(a), as_tensor(b), beta, alpha, as_tensor(out));
    }
    return 0;
  } catch (const c10::Error& error) {
    problem = error.what_without_backtrace();
  } catch (const std::exception& error) {
    problem = error.what();
  }
  return 1;
}

}  // namespace

// Each is called as a kernel is: pointers, and the number of threads, which ATen knows itself.
extern "C" int fusec_multiply(const Product* product, void* left, void* right, void* result,
                              int64_t) {
  return multiply(*product, nullptr, left, right, result);
}

extern "C" int fusec_multiply_and_add(const Product* product, void* added, void* left, void* right,
                                      void* result, int64_t) {
  return multiply(*product, added, left, right, result);
}

// What went wrong in this thread's last product that did not return 0.
extern "C" const char* fusec_multiply_problem() { return problem.c_str(); }
