// Writes the random words of `count` positions from `first` on.
static inline void random_words(
    int32_t* to, int64_t seed, int64_t first, int64_t stream, int64_t count)
{
    for (int64_t done = 0; done < count;) {
        const int64_t skipped = (first + done) & 63, group = (first + done) >> 6;
        if (skipped == 0 && count - done >= 64) {
            random_group(to + done, seed, group, stream);
            done += 64;
            continue;
        }
        int32_t all[64];
        random_group(all, seed, group, stream);
        const int64_t left = 64 - skipped < count - done ? 64 - skipped : count - done;
        for (int64_t k = 0; k < left; ++k) to[done + k] = all[skipped + k];
        done += left;
    }
}
