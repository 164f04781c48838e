/* replay.c - runs a fuzz target over the seeds of a folder, for builds without a fuzzer. An empty folder is a fault. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int replay(const char *folder, const char *name)
{
    char path[4096];
    int n = snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = n > 0 && (size_t)n < sizeof path ? fopen(path, "rb") : NULL;
    if (!file || fseek(file, 0, SEEK_END) != 0) {
        perror(path);
        exit(1);
    }
    long size = ftell(file);
    uint8_t *data =
        malloc(size > 0 ? (size_t)size : 1); /* exactly as long, so that a sanitizer sees one byte too far */
    if (!data || size < 0 || fseek(file, 0, SEEK_SET) != 0 || fread(data, 1, (size_t)size, file) != (size_t)size) {
        perror(path);
        exit(1);
    }
    fclose(file);
    int rc = LLVMFuzzerTestOneInput(data, (size_t)size);
    free(data);
    return rc;
}

int main(int argc, char **argv)
{
    DIR *folder = argc == 2 ? opendir(argv[1]) : NULL;
    if (!folder) {
        fprintf(stderr, "usage: %s FOLDER (%s)\n", argv[0], argc == 2 ? argv[1] : "none given");
        return 2;
    }
    unsigned n = 0, bad = 0;
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        if (entry->d_name[0] == '.')
            continue;
        bad += replay(argv[1], entry->d_name) != 0;
        n++;
    }
    closedir(folder);
    printf("%u seeds, %u refused\n", n, bad);
    return n == 0 || bad > 0;
}
