"""What a kernel may ask of the libraries that it is linked with, and why it may not ask for more.

A kernel computes: it may call mathematics, OpenMP, what handles memory, and what compilers put in
by themselves.  Whatever else it names would act on the process that it is loaded into, which is a
notebook with hours of work.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_MATHS = """
    acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf erfc exp exp10 exp2 expm1
    fabs fdim floor fma fmax fmin fmod frexp hypot ilogb j0 j1 jn ldexp lgamma lgamma_r llrint
    llround log log10 log1p log2 logb lrint lround modf nan nearbyint nextafter nexttoward pow
    remainder remquo rint round roundeven scalbln scalbn significand sin sincos sincospi sinh sinpi
    cospi sqrt tan tanh tgamma trunc y0 y1 yn
    cabs cacos cacosh carg casin casinh catan catanh ccos ccosh cexp cimag clog conj cpow cproj
    creal csin csinh csqrt ctan ctanh
""".split()
_OTHERS = """
    memcpy memmove memset memcmp memchr strlen strcmp strncmp bcmp
    __memcpy_chk __memmove_chk __memset_chk __stack_chk_fail
    malloc calloc realloc free aligned_alloc posix_memalign memalign
    abs labs llabs qsort bsearch div ldiv lldiv
    printf puts putchar fprintf fputs fputc fwrite snprintf fflush stdout stderr
    __printf_chk __fprintf_chk __snprintf_chk
    __cxa_finalize __gmon_start__ _ITM_registerTMCloneTable _ITM_deregisterTMCloneTable
    __gxx_personality_v0 __gxx_personality_seh0 __cxa_begin_catch __cxa_end_catch
    __cxa_allocate_exception __cxa_free_exception __cxa_call_unexpected
    __cxa_pure_virtual __cxa_bad_cast __cxa_throw_bad_array_new_length __clang_call_terminate
    __cxa_call_terminate _Unwind_Resume _Unwind_Backtrace
    ___chkstk_ms __chkstk _fltused dyld_stub_binder _dyld_stub_binder
    __stack_chk_guard memset_pattern16 memset_pattern4 memset_pattern8 bzero
""".split()
_ALLOWED = frozenset([*_OTHERS, *(name + suffix for name in _MATHS for suffix in ("", "f", "l"))])
_PATTERNS = re.compile(
    r"""
      omp_(get_(?!wti)|in_|is_)\w+   # what OpenMP knows; what sets something is not here
    | omp_(init|destroy|set|unset|test)(_nest)?_lock(_with_hint)?
    | GOMP_(?!target|offload|error|warning|PLUGIN|\w+_start$)\w+
    | GOMP_(loop|single|sections|doacross|critical|atomic|taskgroup|workshare|scope)\w*_start
    | __kmpc_(?!error)\w+
    | _ZGV\w+                        # vectors of libmvec
    | __\w+_finite | __(sin|cos|exp|log|sincos)(pi)?_?\w{0,8}_stret
    | Sleef_\w+ | _simd_\w+
    | _Zn[wa]m\w* | _Zd[la]Pv\w*     # new and delete
    | _ZSt\d+__throw_(bad_alloc|bad_array|length_error|logic_error)\w+ | _ZSt\d+bad_\w+
    # makers and destroyers of the library's, but for what opens files, prints or runs threads
    | _ZNSt\d+(?!\d)(?!basic_i?o?f|ios_base|j?thread|locale)\w+(C[12]E\w*|D[012]Ev)
    | _ZT[ISV]St?\w+ | _ZT[ISV]N10__cxxabiv1\w+ | _ZNKSt9exception4whatEv
    | _ZSt\d+_Rb_tree_\w+ | _ZNSt8__detail\w+
    # arithmetic that the processor lacks: of libgcc and compiler-rt
    | __(u?(div|mod|mul|neg|cmp|ash[lr]|lshr|popcount|parity|ffs|clz|ctz|bswap)\w*[sdt]i\d
        |(add|sub|mul|div|neg|pow\w*|ext\w+|trunc\w+|fix\w+|float\w+|eq|ne|lt|le|gt|ge|unord)
         \w*[shdxtb][fci]\d?)
    """,
    re.VERBOSE,
)

# By the beginning of a name, what it would do; the longest beginning counts.
_HARM: Mapping[str, str] = {
    name: why
    for why, names in {
        "it starts a process": "fork vfork exec posix_spawn system popen clone daemon wait",
        "it ends the process": "GOMP_error GOMP_PLUGIN_fatal __kmpc_error "
        "exit _exit _Exit quick_exit abort __assert raise kill tgkill "
        "killpg longjmp _longjmp __longjmp siglongjmp err errx verr _ZSt9terminate",
        "what it throws, nobody catches; return a status instead": "__cxa_throw __cxa_rethrow "
        "_ZSt20__throw_out_of_range _ZSt24__throw_out_of_range_fmt _ZSt25__throw_bad_function_call",
        "it runs when the process ends": "atexit at_quick_exit on_exit __cxa_atexit",
        "it starts or steers threads": "pthread_ thrd_ _ZNSt6thread _ZNSt9jthread _ZNSt13__future "
        "_ZNSt15__exception_ptr _ZNSt18condition_variable _ZSt15set_new_handler sched_ _ZSt4call",
        "it changes how the process takes signals": "signal sigaction __sigaction sigprocmask "
        "sigaltstack bsd_signal sysv_signal __sysv_signal sigset sigsuspend alarm setitimer "
        "timer_",
        "it changes the process's environment": "setenv putenv unsetenv clearenv environ",
        "it reads the process's environment": "getenv secure_getenv",
        "it changes the process's folder": "chdir fchdir chroot",
        "it changes how the processor rounds": "fesetround fesetenv feupdateenv feholdexcept "
        "feenableexcept fedisableexcept feraiseexcept feclearexcept fesetexceptflag",
        "it changes OpenMP's settings for the whole process": "omp_set_",
        "it changes the process's settings": "setlocale setrlimit prlimit nice setpriority umask "
        "setuid setgid seteuid setsid setpgid prctl personality mlockall",
        "it keeps a state between calls": "rand srand drand48 srand48 random srandom strtok "
        "_ZNSt13random_device __errno_location",
        "it waits": "sleep usleep nanosleep clock_nanosleep pause poll ppoll select pselect epoll_ "
        "nanosleep _ZNSt11this_thread",
        "it begins what it may not end": "GOMP_parallel_start",
        "it asks for the time": "time clock gettimeofday clock_gettime localtime gmtime "
        "omp_get_wti _ZNSt6chrono",
        "it loads code": "dlopen dlsym dlclose dlmopen __libc_dlopen",
        "it calls the system by number": "syscall",
        "it uses files or the network": "open creat close read write pread pwrite dup pipe fopen "
        "fclose fread freopen fdopen tmpfile unlink remove rename mkdir rmdir socket connect bind "
        "send recv ioctl fcntl stat access link symlink truncate ftruncate fscanf scanf getc gets "
        "std_in stdin _ZNSt13basic_fstream _ZNSt14basic_ofstream _ZNSt14basic_ifstream",
        "it prints by way of static objects; printf does without": "_ZSo _ZNSo _ZSt4cout _ZSt4cerr "
        "_ZStls _ZSt16__ostream _ZNSt8ios_base _ZNSt9basic_ios",
        "it changes what memory may be used for": "mmap munmap mprotect mremap madvise brk sbrk "
        "shm_ shmat process_vm_ ptrace mallopt",
        "its variables outlive a call": "__tls_get_addr __emutls_get_address _tlv_bootstrap "
        "__cxa_guard __cxa_thread_atexit",
    }.items()
    for name in names.split()
}


_TABLES = re.compile("^_ZT[ISTV]")


def is_allowed(symbol: str) -> bool:
    """Whether a kernel may import a symbol; Mach-O's leading underscore may be there or not."""
    plain = symbol.partition("@")[0]
    return any(
        name in _ALLOWED or _PATTERNS.fullmatch(name) is not None
        for name in (plain, plain.removeprefix("_"))
    )


def harm(symbol: str) -> str:
    """Return what a symbol that is not allowed would do, in a few words."""
    # The tables of a class (its virtual functions, its name) are asked for by who makes one.
    plain = _TABLES.sub("_Z", symbol)
    found = [name for name in _HARM if plain.startswith(name)]
    if found:
        return _HARM[max(found, key=len)]
    return "it is none of the functions that a kernel may call"


__all__ = ["harm", "is_allowed"]
