// Has what this thread streamed written before what follows. The other threads' is: the end of a
// loop that threads share is a barrier, whose locked instructions empty their buffers as well.
static inline void end_stream()
{
#if defined(__x86_64__)
    __builtin_ia32_sfence();
#endif
}
