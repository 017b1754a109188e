/* A disk that fails, for tests: loaded before the C library, it counts what a process does to files below one folder
 * (creating, reserving, writing, syncing, renaming, removing, making folders) and lets the operation of one number go
 * wrong. Python, torch and the Rust libraries all come through here.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum kind { FULL, READ_ONLY, IO_ERROR, TORN, SHORT };

static char root[PATH_MAX];
static long seen, chosen = -1;
static int kind, broken, shorten;
static FILE *names;

/* From now on operations below `folder` count from 0, and number `at` goes wrong; their names go to `list`, if given. */
void fault_arm(const char *folder, long at, int which, const char *list)
{
    snprintf(root, sizeof root, "%s", folder);
    seen = broken = shorten = 0;
    chosen = at;
    kind = which;
    names = *list ? fopen(list, "w") : NULL;
}

long fault_disarm(void)
{
    root[0] = 0;
    if (names)
        fclose(names);
    names = NULL;
    return seen;
}

static int below(const char *path)
{
    size_t length = strlen(root);
    return length && path && !strncmp(path, root, length) && (path[length] == '/' || !path[length]);
}

/* What the operation must fail with, 0 for nothing. A full disk stays full and a read-only one read-only; an error of
 * the device passes; TORN ends the process, for a write after half of it. SHORT is a disk that fills up in the middle
 * of a write, which takes half and says so. A full disk still renames and removes, but
 * for the operation of that number: some file systems need room for that too. */
static int fault(const char *what, const char *path, int fd, const void *data, size_t size)
{
    char link[64], real[PATH_MAX + NAME_MAX + 2];
    if (!root[0])
        return 0;
    if (!path || (path[0] != '/' && fd >= 0)) { /* a file that is open, or a name in a folder that is */
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t length = readlink(link, real, PATH_MAX - 1);
        if (length < 0)
            return 0;
        real[length] = 0;
        if (path)
            snprintf(real + length, sizeof real - length, "/%s", path);
        path = real;
    }
    if (!below(path))
        return 0;
    long number = seen++;
    if (names)
        fprintf(names, "%s %s\n", what, path);
    if (broken && (kind == FULL || kind == SHORT) && strcmp(what, "rename") && strcmp(what, "remove"))
        return ENOSPC;
    if (broken && kind == READ_ONLY)
        return EROFS;
    if (number != chosen)
        return 0;
    broken = 1;
    if (kind == TORN) {
        if (data) {
            ssize_t (*real_write)(int, const void *, size_t) = dlsym(RTLD_NEXT, "write");
            if (real_write(fd, data, size / 2) < 0)
                _exit(99);
        }
        kill(getpid(), SIGKILL);
    }
    if (kind == SHORT && data && size > 1) {
        shorten = 1;
        return 0;
    }
    return kind == FULL || kind == SHORT ? ENOSPC : kind == READ_ONLY ? EROFS : EIO;
}

/* How much of so many bytes the disk takes. */
static size_t part(size_t size)
{
    size_t taken = shorten ? size / 2 : size;
    shorten = 0;
    return taken;
}

#define REAL(name) static __typeof__(&name) real; if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
#define FAIL(...) do { int error = fault(__VA_ARGS__); if (error) { errno = error; return -1; } } while (0)

#define OPEN(name, arguments, path)                                             \
    {                                                                           \
        mode_t mode = 0;                                                        \
        if (flags & (O_CREAT | O_TMPFILE)) {                                    \
            va_list rest;                                                       \
            va_start(rest, flags);                                              \
            mode = va_arg(rest, mode_t);                                        \
            va_end(rest);                                                       \
        }                                                                       \
        REAL(name);                                                             \
        if (flags & (O_WRONLY | O_RDWR | O_CREAT))                              \
            FAIL("open", path, -1, NULL, 0);                                    \
        return real arguments;                                                  \
    }

int open(const char *path, int flags, ...) OPEN(open, (path, flags, mode), path)
int open64(const char *path, int flags, ...) OPEN(open64, (path, flags, mode), path)
int openat(int folder, const char *path, int flags, ...) OPEN(openat, (folder, path, flags, mode), path)
int openat64(int folder, const char *path, int flags, ...) OPEN(openat64, (folder, path, flags, mode), path)

ssize_t write(int fd, const void *data, size_t size)
{
    REAL(write);
    FAIL("write", NULL, fd, data, size);
    return real(fd, data, part(size));
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset)
{
    REAL(pwrite64);
    FAIL("write", NULL, fd, data, size);
    return real(fd, data, part(size), offset);
}

ssize_t writev(int fd, const struct iovec *parts, int count)
{
    REAL(writev);
    FAIL("write", NULL, fd, parts[0].iov_base, parts[0].iov_len);
    struct iovec first = { parts[0].iov_base, parts[0].iov_len / 2 };
    int cut = shorten;
    shorten = 0;
    return cut ? real(fd, &first, 1) : real(fd, parts, count);
}

ssize_t sendfile(int to, int from, off_t *offset, size_t size)
{
    REAL(sendfile);
    FAIL("write", NULL, to, NULL, 0);
    return real(to, from, offset, size);
}

ssize_t sendfile64(int to, int from, off64_t *offset, size_t size)
{
    REAL(sendfile64);
    FAIL("write", NULL, to, NULL, 0);
    return real(to, from, offset, size);
}

int fsync(int fd)
{
    REAL(fsync);
    FAIL("sync", NULL, fd, NULL, 0);
    return real(fd);
}

int fdatasync(int fd)
{
    REAL(fdatasync);
    FAIL("sync", NULL, fd, NULL, 0);
    return real(fd);
}

int ftruncate64(int fd, off64_t length)
{
    REAL(ftruncate64);
    FAIL("truncate", NULL, fd, NULL, 0);
    return real(fd, length);
}

int rename(const char *from, const char *to)
{
    REAL(rename);
    FAIL("rename", from, -1, NULL, 0);
    return real(from, to);
}

int renameat(int from_folder, const char *from, int to_folder, const char *to)
{
    REAL(renameat);
    FAIL("rename", from, -1, NULL, 0);
    return real(from_folder, from, to_folder, to);
}

int mkdir(const char *path, mode_t mode)
{
    REAL(mkdir);
    FAIL("mkdir", path, -1, NULL, 0);
    return real(path, mode);
}

int mkdirat(int folder, const char *path, mode_t mode)
{
    REAL(mkdirat);
    FAIL("mkdir", path, -1, NULL, 0);
    return real(folder, path, mode);
}

int unlink(const char *path)
{
    REAL(unlink);
    FAIL("remove", path, -1, NULL, 0);
    return real(path);
}

int unlinkat(int folder, const char *path, int flags)
{
    REAL(unlinkat);
    FAIL("remove", path, folder, NULL, 0);
    return real(folder, path, flags);
}

int rmdir(const char *path)
{
    REAL(rmdir);
    FAIL("remove", path, -1, NULL, 0);
    return real(path);
}

/* Returns the error itself. */
int posix_fallocate64(int fd, off64_t offset, off64_t length)
{
    REAL(posix_fallocate64);
    int error = fault("reserve", NULL, fd, NULL, 0);
    return error ? error : real(fd, offset, length);
}

int posix_fallocate(int fd, off_t offset, off_t length)
{
    return posix_fallocate64(fd, offset, length);
}
