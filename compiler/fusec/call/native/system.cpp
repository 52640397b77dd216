// What the operating system is asked for: aligned memory and other libraries' functions. See
// tensors.cpp for what these files are.

#if defined(_WIN32)
#include <malloc.h>
#include <windows.h>
#else
#include <dlfcn.h>
#include <sys/mman.h>
#endif

namespace {

#if defined(_WIN32)

void* aligned_memory(size_t alignment, size_t size) { return _aligned_malloc(size, alignment); }

void free_aligned(void* memory) { _aligned_free(memory); }

// Returns null, with Python's error set, where there is no such library.
void* open_library(const char* path) {
  void* library = reinterpret_cast<void*>(LoadLibraryA(path));
  if (!library) PyErr_Format(PyExc_OSError, "%s cannot be loaded", path);
  return library;
}

void* function_of(void* library, const char* name) {
  return reinterpret_cast<void*>(GetProcAddress(reinterpret_cast<HMODULE>(library), name));
}

#else

// `size` is a multiple of `alignment`.
void* aligned_memory(size_t alignment, size_t size) { return aligned_alloc(alignment, size); }

void free_aligned(void* memory) { free(memory); }

// Returns null, with Python's error set, where there is no such library.
void* open_library(const char* path) {
  void* library = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
  if (!library) PyErr_Format(PyExc_OSError, "%s", dlerror());
  return library;
}

void* function_of(void* library, const char* name) { return dlsym(library, name); }

#endif

}  // namespace
