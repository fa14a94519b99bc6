/* An independent check of the calibrated peaks: intrinsics compiled by a C compiler.

   Prints the best of many passes, by thread CPU time: f32 and f64 GFLOP/s, then GB/s of read, copy, add and
   write for the working sets (KiB) given as arguments. Only benchmarks use it; SOLGym needs no C compiler. */
#define _GNU_SOURCE
#include <immintrin.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#ifdef __AVX512F__
#define BITS 512
typedef __m512 vf;
typedef __m512d vd;
#define F(op) _mm512_##op##_ps
#define D(op) _mm512_##op##_pd
#else
#define BITS 256
typedef __m256 vf;
typedef __m256d vd;
#define F(op) _mm256_##op##_ps
#define D(op) _mm256_##op##_pd
#endif
enum { LANES = BITS / 32, CHAINS = 12, BLOCK = 8 * LANES };

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static volatile float sink;
static volatile float half = 0.5f;

/* Named variables and one instruction each, so that the chains stay in registers and stay apart. */
#define STEP(x, instruction) __asm__ volatile(instruction " %1, %1, %0" : "+v"(x) : "v"(a))
#define PEAK(name, vec, op, instruction)                                                                 \
    static __attribute__((noinline)) void name(long trips) {                                             \
        vec a = op(set1)(half), x0 = a, x1 = a, x2 = a, x3 = a, x4 = a, x5 = a, x6 = a, x7 = a, x8 = a,   \
            x9 = a, x10 = a, x11 = a;                                                                    \
        for (long t = 0; t < trips; t++) {                                                               \
            STEP(x0, instruction); STEP(x1, instruction); STEP(x2, instruction); STEP(x3, instruction);   \
            STEP(x4, instruction); STEP(x5, instruction); STEP(x6, instruction); STEP(x7, instruction);   \
            STEP(x8, instruction); STEP(x9, instruction); STEP(x10, instruction); STEP(x11, instruction); \
        }                                                                                                \
    }
PEAK(peak_f32, vf, F, "vfmadd213ps")
PEAK(peak_f64, vd, D, "vfmadd213pd")

static __attribute__((noinline)) void read_all(const float *a, long n) {
    vf s[8];
    for (int j = 0; j < 8; j++) s[j] = F(setzero)();
    for (long i = 0; i < n; i += BLOCK)
        _Pragma("GCC unroll 8") for (int j = 0; j < 8; j++) s[j] = F(add)(s[j], F(load)(a + i + LANES * j));
    for (int j = 1; j < 8; j++) s[0] = F(add)(s[0], s[j]);
    sink = *(float *)&s[0];
}

#define STREAM(name, store)                                                                             \
    static __attribute__((noinline)) void copy_##name(float *b, const float *a, long n) {               \
        for (long i = 0; i < n; i += BLOCK)                                                             \
            for (int j = 0; j < 8; j++) F(store)(b + i + LANES * j, F(load)(a + i + LANES * j));        \
    }                                                                                                   \
    static __attribute__((noinline)) void add_##name(float *c, const float *a, const float *b, long n) { \
        for (long i = 0; i < n; i += BLOCK)                                                             \
            for (int j = 0; j < 8; j++)                                                                 \
                F(store)(c + i + LANES * j, F(add)(F(load)(a + i + LANES * j), F(load)(b + i + LANES * j))); \
    }                                                                                                   \
    static __attribute__((noinline)) void fill_##name(float *a, long n) {                               \
        for (long i = 0; i < n; i += BLOCK)                                                             \
            for (int j = 0; j < 8; j++) F(store)(a + i + LANES * j, F(set1)(half));                     \
    }
STREAM(plain, store)
STREAM(past, stream)

static float *memory;

static void run(int kind, long n) {
    float *a = memory, *b = a + n, *c = b + n;
    switch (kind) {
    case 0: read_all(a, n); break;
    case 1: copy_plain(b, a, n); break;
    case 2: copy_past(b, a, n); break;
    case 3: memcpy(b, a, 4 * n); break;
    case 4: add_plain(c, a, b, n); break;
    case 5: add_past(c, a, b, n); break;
    case 6: fill_plain(a, n); break;
    case 7: fill_past(a, n); break;
    case 8: memset(a, 1, 4 * n); break;
    }
}

static double best_gb_per_s(int kind, int arrays, long bytes) {
    long n = bytes / arrays / (4 * BLOCK) * BLOCK, trips = 1 + (8 << 20) / bytes;
    double best = 0;
    for (int repeat = 0; repeat < 14; repeat++) {
        double begin = seconds();
        for (long t = 0; t < trips; t++) run(kind, n);
        double rate = 4.0 * n * arrays * trips / (seconds() - begin) / 1e9;
        if (rate > best) best = rate;
    }
    return best;
}

int main(int argc, char **argv) {
    for (int f64 = 0; f64 < 2; f64++) {
        double best = 0, flops = 500000.0 * CHAINS * 2 * LANES / (f64 ? 2 : 1);
        for (int repeat = 0; repeat < 60; repeat++) {
            double begin = seconds();
            f64 ? peak_f64(500000) : peak_f32(500000);
            double rate = flops / (seconds() - begin) / 1e9;
            if (rate > best) best = rate;
        }
        printf("%s %.2f\n", f64 ? "f64" : "f32", best);
    }
    const size_t size = (size_t)400 << 20;
    memory = aligned_alloc(2 << 20, size);
    madvise(memory, size, MADV_HUGEPAGE);
    for (size_t i = 0; i < size / 4; i++) memory[i] = (float)rand() / RAND_MAX + 0.1f;
    static const struct { const char *name; int first, last, arrays; } streams[] = {
        {"read", 0, 0, 1}, {"copy", 1, 3, 2}, {"add", 4, 5, 3}, {"write", 6, 8, 1}};
    for (int argument = 1; argument < argc; argument++)
        for (int s = 0; s < 4; s++) {
            double best = 0;
            for (int kind = streams[s].first; kind <= streams[s].last; kind++) {
                double rate = best_gb_per_s(kind, streams[s].arrays, atol(argv[argument]) * 1024);
                if (rate > best) best = rate;
            }
            printf("%s %s %.2f\n", argv[argument], streams[s].name, best);
        }
    return 0;
}
