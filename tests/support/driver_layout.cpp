// Compiled after call/native/driver.cpp: what is declared there is what CUDA's header declares.

#include <cuda.h>

#include <cstddef>
#include <type_traits>

#define SAME(ours, theirs) \
  static_assert(offsetof(KernelNodeParams, ours) == offsetof(CUDA_KERNEL_NODE_PARAMS_v2, theirs))
SAME(function, func);
SAME(grid, gridDimX);
SAME(block, blockDimX);
SAME(shared, sharedMemBytes);
SAME(parameters, kernelParams);
SAME(extra, extra);
SAME(kernel, kern);
SAME(context, ctx);
static_assert(sizeof(KernelNodeParams) == sizeof(CUDA_KERNEL_NODE_PARAMS_v2));
#undef SAME

#define SAME(ours, theirs) static_assert(offsetof(MemcpyParams, ours) == offsetof(CUDA_MEMCPY3D, theirs))
SAME(from.x, srcXInBytes);
SAME(from.kind, srcMemoryType);
SAME(from.host, srcHost);
SAME(from.device, srcDevice);
SAME(from.array, srcArray);
SAME(from.pitch, srcPitch);
SAME(from.height, srcHeight);
SAME(to.x, dstXInBytes);
SAME(to.kind, dstMemoryType);
SAME(to.device, dstDevice);
SAME(to.height, dstHeight);
SAME(width, WidthInBytes);
SAME(height, Height);
SAME(depth, Depth);
static_assert(sizeof(MemcpyParams) == sizeof(CUDA_MEMCPY3D));
static_assert(sizeof(CUmemorytype) == sizeof(int) && CU_MEMORYTYPE_DEVICE == kDeviceMemory);
static_assert(CU_STREAM_CAPTURE_STATUS_ACTIVE == 1 && CU_STREAM_CAPTURE_STATUS_NONE == 0);

// A pointer, an enumeration or a number of the same size in each place.
template <typename A, typename B>
constexpr bool kSameKind = sizeof(A) == sizeof(B) && std::is_pointer<A>::value == std::is_pointer<B>::value;
template <typename A, typename B>
struct Same : std::false_type {};
template <typename R, typename... A, typename S, typename... B>
struct Same<R (*)(A...), S (*)(B...)> {
  template <typename... T>
  struct List {};
  template <typename... X, typename... Y>
  static constexpr bool all(List<X...>, List<Y...>) {
    if constexpr (sizeof...(X) != sizeof...(Y)) {
      return false;
    } else {
      return (kSameKind<X, Y> && ...);
    }
  }
  static constexpr bool value = kSameKind<R, S> && all(List<A...>{}, List<B...>{});
};
#define SAME_FUNCTION(ours, theirs) static_assert(Same<decltype(Driver::ours), decltype(&theirs)>::value)
SAME_FUNCTION(launch, cuLaunchKernel);
SAME_FUNCTION(copy, cuMemcpyDtoDAsync_v2);
SAME_FUNCTION(capture_info, cuStreamGetCaptureInfo_v2);
SAME_FUNCTION(set_kernel, cuGraphExecKernelNodeSetParams_v2);
SAME_FUNCTION(set_copy, cuGraphExecMemcpyNodeSetParams);
SAME_FUNCTION(launch_graph, cuGraphLaunch);
SAME_FUNCTION(create_graph, cuGraphCreate);
SAME_FUNCTION(add_kernel, cuGraphAddKernelNode_v2);
SAME_FUNCTION(instantiate, cuGraphInstantiateWithFlags);
SAME_FUNCTION(destroy_executable, cuGraphExecDestroy);
SAME_FUNCTION(destroy_graph, cuGraphDestroy);
SAME_FUNCTION(exchange_capture_mode, cuThreadExchangeStreamCaptureMode);
static_assert(CU_STREAM_CAPTURE_MODE_RELAXED == kRelaxed);
SAME_FUNCTION(current_context, cuCtxGetCurrent);
SAME_FUNCTION(error_name, cuGetErrorName);
SAME_FUNCTION(error_text, cuGetErrorString);
