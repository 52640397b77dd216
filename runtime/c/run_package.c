/* Runs a program of an unpacked package: float32 tensors in from files, float32 numbers out.
 *
 *   cc -I FOLDER run_package.c -o run_package -ldl
 *   ./run_package FOLDER PROCESSOR PROGRAM INPUT...
 *
 * PROCESSOR names a file of FOLDER/binaries: x86-64-v3. Each INPUT is FILE:DxDx...: the numbers of a
 * contiguous float32 tensor, as they lie in memory (numpy's tofile). FILE:i:DxD holds int64.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuse.h"

static void fail(const char* what, const char* why)
{
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

static void* read_file(const char* path, long* size)
{
    FILE* file = fopen(path, "rb");
    if (!file) return NULL;
    fseek(file, 0, SEEK_END);
    *size = ftell(file);
    rewind(file);
    void* data = aligned_alloc(64, (size_t)(*size + 64) / 64 * 64);
    if (!data || fread(data, 1, (size_t)*size, file) != (size_t)*size) fail(path, "cannot be read");
    fclose(file);
    return data;
}

static fuse_tensor read_tensor(char* text)
{
    fuse_tensor tensor = {0};
    char* sizes = strchr(text, ':');
    if (!sizes) fail(text, "has no sizes: FILE:3x4");
    *sizes++ = 0;
    tensor.dtype = FUSE_FLOAT32;
    if (sizes[0] == 'i' && sizes[1] == ':') {
        tensor.dtype = FUSE_INT64;
        sizes += 2;
    }
    for (char* each = strtok(sizes, "x"); each && tensor.rank < FUSE_MOST_DIMENSIONS; each = strtok(NULL, "x"))
        tensor.shape[tensor.rank++] = atol(each);
    long count = 1, size = 0;
    for (int i = tensor.rank - 1; i >= 0; i--) {
        tensor.strides[i] = count;
        count *= tensor.shape[i];
    }
    tensor.data = read_file(text, &size);
    if (!tensor.data) fail(text, "is not there");
    if (size != count * (tensor.dtype == FUSE_INT64 ? 8 : 4)) fail(text, "has another size");
    return tensor;
}

int main(int argc, char** argv)
{
    if (argc < 4) fail(argv[0], "FOLDER PROCESSOR PROGRAM INPUT...");
    char path[4096];
    snprintf(path, sizeof path, "%s/binaries/%s.so", argv[1], argv[2]);
    void* library = dlopen(path, RTLD_NOW);
    if (!library) fail(path, dlerror());
    int64_t (*run)(int64_t, const fuse_tensor*, int64_t, const void*, fuse_tensor*, int64_t);
    int64_t (*outputs)(int64_t);
    const char* (*problem)(void);
    *(void**)&run = dlsym(library, "fuse_run");
    *(void**)&outputs = dlsym(library, "fuse_outputs");
    *(void**)&problem = dlsym(library, "fuse_problem");
    if (!run || !outputs || !problem) fail(path, "is no library of a package");

    snprintf(path, sizeof path, "%s/weights.safetensors", argv[1]);
    long size = 0;
    char* weights = read_file(path, &size); /* not there without weights */
    if (weights) weights += 8 + *(uint64_t*)weights;

    int64_t program = atol(argv[3]), count = argc - 4, made = outputs(program);
    if (made < 0 || count > 16 || made > 16) fail(argv[3], "there is no such program");
    fuse_tensor in[16], out[16];
    for (int64_t i = 0; i < count; i++) in[i] = read_tensor(argv[4 + i]);
    if (run(program, in, count, weights, out, 1)) fail("it does not run", problem());

    for (int64_t i = 0; i < made; i++) {
        int64_t index[FUSE_MOST_DIMENSIONS] = {0}, total = 1;
        for (int d = 0; d < out[i].rank; d++) total *= out[i].shape[d];
        if (out[i].dtype != FUSE_FLOAT32) fail("an output", "is not float32");
        for (int64_t n = 0; n < total; n++) {
            int64_t at = 0;
            for (int d = 0; d < out[i].rank; d++) at += index[d] * out[i].strides[d];
            printf("%.9g\n", ((float*)out[i].data)[at]);
            for (int d = out[i].rank - 1; d >= 0 && ++index[d] == out[i].shape[d]; d--) index[d] = 0;
        }
        free(out[i].memory);
    }
    return 0;
}
