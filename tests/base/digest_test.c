/* digest_test.c - published vectors of SHA-256 and CRC32C, whole and in pieces. */
#include "../scratch.h"
#include "base/base.h"

static void assert_sha(const void *bytes, size_t n, const char *hex)
{
    uint8_t sum[NS_SHA256_BYTES];
    char got[NS_SHA256_HEX];
    ns_sha256_of(bytes, n, sum);
    ns_hex(sum, sizeof sum, got);
    assert_string_equal(got, hex);
}

static void sha256_vectors(void **state)
{
    (void)state;
    assert_sha("", 0, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    assert_sha("abc", 3, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    assert_sha("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 56,
               "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

static void sha256_in_pieces(void **state)
{
    (void)state;
    uint8_t bytes[1000], whole[NS_SHA256_BYTES], pieces[NS_SHA256_BYTES];
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)(i * 13);
    ns_sha256_of(bytes, sizeof bytes, whole);
    for (size_t step = 1; step < 200; step += 17) {
        struct ns_sha256 *h = ns_sha256_open();
        assert_non_null(h);
        for (size_t at = 0; at < sizeof bytes; at += step)
            ns_sha256_add(h, bytes + at, sizeof bytes - at < step ? sizeof bytes - at : step);
        ns_sha256_close(h, pieces);
        assert_memory_equal(whole, pieces, sizeof whole);
    }
    ns_sha256_close(ns_sha256_open(), NULL); /* abandoned */
}

/* RFC 3720, appendix B.4, and the check value of the polynomial. */
static void crc32c_vectors(void **state)
{
    (void)state;
    uint8_t bytes[32] = {0};
    assert_int_equal(ns_crc32c(0, "", 0), 0);
    assert_int_equal(ns_crc32c(0, "123456789", 9), 0xE3069283u);
    assert_int_equal(ns_crc32c(0, bytes, 32), 0x8A9136AAu);
    memset(bytes, 0xFF, 32);
    assert_int_equal(ns_crc32c(0, bytes, 32), 0x62A8AB43u);
    for (size_t i = 0; i < 32; i++)
        bytes[i] = (uint8_t)i;
    for (size_t cut = 0; cut <= 32; cut++)
        assert_int_equal(ns_crc32c(ns_crc32c(0, bytes, cut), bytes + cut, 32 - cut), 0x46DD794Eu);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sha256_vectors),
        cmocka_unit_test(sha256_in_pieces),
        cmocka_unit_test(crc32c_vectors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
