/* CRC-32C (Castagnoli) for the record codec: one instruction per word where the processor has one, tables elsewhere.
 *
 * All functions take and return the raw register: start with GQ_CRC_START, invert at the end. Call gq_crc_init once,
 * under the GIL, before anything else.
 *
 * The instruction takes three cycles but one can start every cycle, so a single chain leaves two thirds of the unit
 * idle. Long runs are therefore cut into three lanes, computed side by side and joined with a table that moves a
 * register past GQ_LANE zero bytes. The "pair" functions carry two registers over the same bytes (a record before and
 * after it is stamped): the second and third lane do not depend on the register, so both share them. */
#ifndef GOQUEUE_CRC32C_H
#define GOQUEUE_CRC32C_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define GQ_CRC_START 0xFFFFFFFFu
#define GQ_POLYNOMIAL 0x82F63B78u /* bit-reversed */
#define GQ_LANE 256
#define GQ_LANE_WORDS (GQ_LANE / 8)

#if defined(__GNUC__) && defined(__x86_64__)
#include <nmmintrin.h>
#define GQ_HARDWARE "sse4.2"
#define GQ_TARGET __attribute__((target("sse4.2")))
#define GQ_HARDWARE_IS_HERE() __builtin_cpu_supports("sse4.2")
#define GQ_WORD(crc, word) _mm_crc32_u64((crc), (word))
#define GQ_BYTE(crc, byte) _mm_crc32_u8((uint32_t)(crc), (byte))
#elif defined(__GNUC__) && defined(__aarch64__) && defined(__ARM_FEATURE_CRC32) && !defined(__ARM_BIG_ENDIAN)
#include <arm_acle.h>
#define GQ_HARDWARE "armv8"
#define GQ_TARGET
#define GQ_HARDWARE_IS_HERE() 1
#define GQ_WORD(crc, word) __crc32cd((uint32_t)(crc), (word))
#define GQ_BYTE(crc, byte) __crc32cb((uint32_t)(crc), (byte))
#endif

static uint32_t gq_table[8][256]; /* [k][b]: byte b followed by k zero bytes */
static uint32_t gq_past[4][256];  /* [k][b]: register b << 8k moved past GQ_LANE zero bytes */
static int gq_use_hardware;

static uint32_t gq_crc_software(uint32_t crc, const uint8_t *p, size_t n) {
    while (n >= 8) {
        crc ^= (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
        crc = gq_table[7][crc & 0xFF] ^ gq_table[6][crc >> 8 & 0xFF] ^ gq_table[5][crc >> 16 & 0xFF] ^
              gq_table[4][crc >> 24] ^ gq_table[3][p[4]] ^ gq_table[2][p[5]] ^ gq_table[1][p[6]] ^ gq_table[0][p[7]];
        p += 8;
        n -= 8;
    }
    while (n--)
        crc = gq_table[0][(crc ^ *p++) & 0xFF] ^ crc >> 8;
    return crc;
}

#ifdef GQ_HARDWARE
static inline uint64_t gq_load(const uint8_t *p) {
    uint64_t word;
    memcpy(&word, p, 8);
    return word;
}

static inline uint64_t gq_move(uint64_t crc) {
    return gq_past[0][crc & 0xFF] ^ gq_past[1][crc >> 8 & 0xFF] ^ gq_past[2][crc >> 16 & 0xFF] ^
           gq_past[3][crc >> 24 & 0xFF];
}

GQ_TARGET static uint32_t gq_crc_hardware(uint32_t start, const uint8_t *p, size_t n) {
    uint64_t crc = start;
    while (n >= 3 * GQ_LANE) {
        uint64_t second = 0, third = 0;
        for (int i = 0; i < GQ_LANE_WORDS; i++, p += 8) {
            crc = GQ_WORD(crc, gq_load(p));
            second = GQ_WORD(second, gq_load(p + GQ_LANE));
            third = GQ_WORD(third, gq_load(p + 2 * GQ_LANE));
        }
        crc = gq_move(gq_move(crc) ^ second) ^ third;
        p += 2 * GQ_LANE;
        n -= 3 * GQ_LANE;
    }
    for (; n >= 8; n -= 8, p += 8)
        crc = GQ_WORD(crc, gq_load(p));
    for (; n; n--)
        crc = GQ_BYTE(crc, *p++);
    return (uint32_t)crc;
}

GQ_TARGET static void gq_pair_hardware(uint32_t *first, uint32_t *other, const uint8_t *p, size_t n) {
    uint64_t a = *first, b = *other;
    while (n >= 3 * GQ_LANE) {
        uint64_t second = 0, third = 0;
        for (int i = 0; i < GQ_LANE_WORDS; i++, p += 8) {
            uint64_t word = gq_load(p);
            a = GQ_WORD(a, word);
            b = GQ_WORD(b, word);
            second = GQ_WORD(second, gq_load(p + GQ_LANE));
            third = GQ_WORD(third, gq_load(p + 2 * GQ_LANE));
        }
        a = gq_move(gq_move(a) ^ second) ^ third;
        b = gq_move(gq_move(b) ^ second) ^ third;
        p += 2 * GQ_LANE;
        n -= 3 * GQ_LANE;
    }
    for (; n >= 8; n -= 8, p += 8) {
        uint64_t word = gq_load(p);
        a = GQ_WORD(a, word);
        b = GQ_WORD(b, word);
    }
    for (; n; n--, p++) {
        a = GQ_BYTE(a, *p);
        b = GQ_BYTE(b, *p);
    }
    *first = (uint32_t)a;
    *other = (uint32_t)b;
}
#endif

static inline uint32_t gq_crc(uint32_t crc, const uint8_t *p, size_t n) {
#ifdef GQ_HARDWARE
    if (gq_use_hardware)
        return gq_crc_hardware(crc, p, n);
#endif
    return gq_crc_software(crc, p, n);
}

/* Two registers over the same bytes. */
static inline void gq_crc_pair(uint32_t *first, uint32_t *other, const uint8_t *p, size_t n) {
#ifdef GQ_HARDWARE
    if (gq_use_hardware) {
        gq_pair_hardware(first, other, p, n);
        return;
    }
#endif
    *first = gq_crc_software(*first, p, n);
    *other = gq_crc_software(*other, p, n);
}

/* Choose the path: the instruction if `allow_hardware` and there is one. Returns the name of the path chosen. */
static const char *gq_crc_choose(int allow_hardware) {
    gq_use_hardware = 0;
#ifdef GQ_HARDWARE
    if (allow_hardware && GQ_HARDWARE_IS_HERE()) {
        gq_use_hardware = 1;
        return GQ_HARDWARE;
    }
#else
    (void)allow_hardware;
#endif
    return "software";
}

static void gq_crc_init(void) {
    static const uint8_t zeros[GQ_LANE];
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ GQ_POLYNOMIAL : crc >> 1;
        gq_table[0][byte] = crc;
    }
    for (int k = 1; k < 8; k++)
        for (uint32_t byte = 0; byte < 256; byte++)
            gq_table[k][byte] = gq_table[k - 1][byte] >> 8 ^ gq_table[0][gq_table[k - 1][byte] & 0xFF];
    for (int k = 0; k < 4; k++)
        for (uint32_t byte = 0; byte < 256; byte++)
            gq_past[k][byte] = gq_crc_software(byte << 8 * k, zeros, GQ_LANE);
    gq_crc_choose(1);
}

#endif
