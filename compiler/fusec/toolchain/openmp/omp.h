// What kernels may ask of OpenMP, for compilers that come without omp.h.
#pragma once

#ifdef __cplusplus
extern "C" {
#endif
int omp_get_thread_num(void);
int omp_get_num_threads(void);
int omp_get_max_threads(void);
int omp_get_num_procs(void);
int omp_in_parallel(void);
int omp_get_level(void);
double omp_get_wtime(void);
#ifdef __cplusplus
}
#endif
