/* Calling a package's library from C: what it has for each program that needs no torch.
 *
 * Unpack a package (python -m fusec.packages.unpack model.fuse FOLDER, or any zip program), open
 * FOLDER/binaries/PROCESSOR.so with dlopen, and look these functions up. FOLDER/weights.safetensors
 * holds the weights: eight bytes with the length of its header, the header, and the data that
 * fuse_run takes. run_package.c does all of it in a hundred lines.
 */
#ifndef FUSE_H
#define FUSE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FUSE_MOST_DIMENSIONS 8

enum fuse_dtype {
    FUSE_FLOAT64, FUSE_FLOAT32, FUSE_FLOAT16, FUSE_BFLOAT16, FUSE_INT64, FUSE_INT32, FUSE_INT16, FUSE_INT8,
    FUSE_UINT64, FUSE_UINT32, FUSE_UINT16, FUSE_UINT8, FUSE_BOOL, FUSE_OTHER
};

/* A tensor on the CPU. Strides are in elements. */
typedef struct {
    void* data;
    void* memory; /* of an output: give it to free(); NULL where the data is an input's or a weight's */
    int32_t dtype;
    int32_t rank;
    int64_t shape[FUSE_MOST_DIMENSIONS];
    int64_t strides[FUSE_MOST_DIMENSIONS];
} fuse_tensor;

/* How many programs there are; each was packaged for one kind of call. */
int64_t fuse_programs(void);

/* What a program was packaged for, for people: "0: x 4 x 9". */
const char* fuse_name(int64_t program);

/* How many tensors a program takes and returns; -1 where there is no such program. */
int64_t fuse_inputs(int64_t program);
int64_t fuse_outputs(int64_t program);

/* Run a program: 0, or another number, and fuse_problem() says why. Guards are checked first.
 *
 * inputs: as many as fuse_inputs says. weights: the data of weights.safetensors; NULL without weights.
 * outputs: as many as fuse_outputs says; filled. threads: that kernels may use. */
int64_t fuse_run(int64_t program, const fuse_tensor* inputs, int64_t count, const void* weights,
    fuse_tensor* outputs, int64_t threads);

/* Why this thread's last call failed. */
const char* fuse_problem(void);

#ifdef __cplusplus
}
#endif
#endif
