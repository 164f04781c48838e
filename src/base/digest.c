/* digest.c - SHA-256 by libcrypto, CRC32C by table. */
#include "base/base.h"

#include <openssl/evp.h>

struct ns_sha256; /* is an EVP_MD_CTX */

struct ns_sha256 *ns_sha256_open(void)
{
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    if (ctx && EVP_DigestInit_ex(ctx, EVP_sha256(), NULL) != 1) {
        EVP_MD_CTX_free(ctx);
        ctx = NULL;
    }
    return (struct ns_sha256 *)ctx;
}

void ns_sha256_add(struct ns_sha256 *hash, const void *bytes, size_t n)
{
    EVP_DigestUpdate((EVP_MD_CTX *)hash, bytes, n);
}

void ns_sha256_close(struct ns_sha256 *hash, uint8_t out[NS_SHA256_BYTES])
{
    if (hash && out)
        EVP_DigestFinal_ex((EVP_MD_CTX *)hash, out, NULL);
    EVP_MD_CTX_free((EVP_MD_CTX *)hash);
}

void ns_sha256_of(const void *bytes, size_t n, uint8_t out[NS_SHA256_BYTES])
{
    EVP_Digest(bytes, n, out, NULL, EVP_sha256(), NULL);
}

void ns_hex(const uint8_t *bytes, size_t n, char *out)
{
    static const char digit[] = "0123456789abcdef";
    for (size_t i = 0; i < n; i++) {
        out[2 * i] = digit[bytes[i] >> 4];
        out[2 * i + 1] = digit[bytes[i] & 15];
    }
    out[2 * n] = '\0';
}

/* CRC32C (Castagnoli, reflected polynomial 0x82F63B78), four bits a step: the table is small and const. */
static const uint32_t crc_nibble[16] = {
    0x00000000, 0x105EC76F, 0x20BD8EDE, 0x30E349B1, 0x417B1DBC, 0x5125DAD3, 0x61C69362, 0x7198540D,
    0x82F63B78, 0x92A8FC17, 0xA24BB5A6, 0xB21572C9, 0xC38D26C4, 0xD3D3E1AB, 0xE330A81A, 0xF36E6F75,
};

uint32_t ns_crc32c(uint32_t crc, const void *bytes, size_t n)
{
    const uint8_t *p = bytes;
    crc = ~crc;
    for (size_t i = 0; i < n; i++) {
        crc ^= p[i];
        crc = crc >> 4 ^ crc_nibble[crc & 15];
        crc = crc >> 4 ^ crc_nibble[crc & 15];
    }
    return ~crc;
}
