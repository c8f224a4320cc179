/* Stands between a program and the C library, where it changes files below one folder: counts the changes, and at a
 * chosen one kills the program, or lets the disk be full from there on. Python, SQLite and Rust code alike go through
 * here (LD_PRELOAD; Linux).
 *
 * A point is the moment before or after a change, or the middle of a write: half of its bytes are there. One before a
 * change finds what the one after the last change left; it is told apart, so that it need not be tried as well. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OFF, COUNT, KILL, FULL };
enum { BEFORE = 'b', WITHIN = 'w', AFTER = 'a', KINDS = 1 << 20 };

static int mode = OFF, trace = -1;
static char folder[PATH_MAX];
static size_t length;
static long chosen;
static atomic_long count;
static char kinds[KINDS];

/* Begin: `how` (above), below which folder, at which point (KILL) or growth (FULL), and where to write a line for each
 * change, or -1. */
void faults_arm(int how, const char *below, long at, int told) {
    snprintf(folder, sizeof folder, "%s", below);
    length = strlen(folder);
    chosen = at;
    trace = told;
    count = 0;
    mode = how;
}

/* The points (in FULL, the growths) that there were since. */
long faults_count(void) { return count; }

/* Of the point, whether it is before, within or after a change. */
char faults_kind(long at) { return at >= 0 && at < KINDS ? kinds[at] : BEFORE; }

static void die(void) {
    kill(getpid(), SIGKILL);
    for (;;) pause();
}

static void point(char kind) {
    if (mode == FULL) return;
    long now = atomic_fetch_add(&count, 1);
    if (now < KINDS) kinds[now] = kind;
    if (now == chosen && mode == KILL) die();
}

/* Whether the disk is full: 1 when it has just become so, 2 from then on. */
static int full(void) {
    if (mode != FULL) return 0;
    long now = atomic_fetch_add(&count, 1);
    return now < chosen ? 0 : now == chosen ? 1 : 2;
}

static int below(const char *path) {
    return strncmp(path, folder, length) == 0 && (path[length] == '/' || path[length] == 0);
}

static int name_of(int fd, char *into) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, into, PATH_MAX - 1);
    into[n < 0 ? 0 : n] = 0;
    return n >= 0;
}

static int open_below(int fd, char *into) {
    int before = errno, found = mode != OFF && name_of(fd, into) && below(into);
    errno = before;
    return found;
}

static int path_below(int dir, const char *path, char *into) {
    if (mode == OFF || !path) return 0;
    int before = errno;
    if (path[0] == '/') {
        snprintf(into, PATH_MAX, "%s", path);
    } else {
        char start[PATH_MAX] = "";
        if (dir == AT_FDCWD ? !getcwd(start, sizeof start) : !name_of(dir, start)) start[0] = 0;
        if (snprintf(into, PATH_MAX, "%s/%s", start, path) >= PATH_MAX) into[0] = 0;
    }
    errno = before;
    return below(into);
}

static void tell(const char *what, const char *one, const char *other) {
    if (trace >= 0) dprintf(trace, "%s\t%s\t%s\n", what, one, other ? other : "");
}

#define REAL(type, name, ...) \
    static type (*real)(__VA_ARGS__); \
    if (!real) real = (type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)

/* Do a change, with a point before and after. */
#define AROUND(type, call, what, one, other) \
    do { \
        point(BEFORE); \
        type result = call; \
        int after = errno; \
        if (result >= 0) tell(what, one, other); \
        point(AFTER); \
        errno = after; \
        return result; \
    } while (0)

#define NO_SPACE \
    do { \
        errno = ENOSPC; \
        return -1; \
    } while (0)

/* -- by path ------------------------------------------------------------------------------------------------------- */

static int is_new(int dir, const char *path) {
    int before = errno, found = faccessat(dir, path, F_OK, AT_SYMLINK_NOFOLLOW);
    errno = before;
    return found != 0;
}

static int opened(int dir, const char *path, int flags, int rights, int (*real)(int, const char *, int, ...)) {
    char where[PATH_MAX];
    int changes = (flags & (O_CREAT | O_TRUNC)) && !(flags & O_DIRECTORY);
    if (!changes || !path_below(dir, path, where)) return real(dir, path, flags, rights);
    int fresh = is_new(dir, path);
    if (!fresh && !(flags & O_TRUNC)) return real(dir, path, flags, rights);
    if (fresh && full()) NO_SPACE;
    AROUND(int, real(dir, path, flags, rights), fresh ? "create" : "write", where, 0);
}

#define RIGHTS \
    int rights = 0; \
    if (flags & (O_CREAT | O_TMPFILE)) { \
        va_list more; \
        va_start(more, flags); \
        rights = va_arg(more, int); \
        va_end(more); \
    }

int openat(int dir, const char *path, int flags, ...) {
    REAL(int, openat, int, const char *, int, ...);
    RIGHTS
    return opened(dir, path, flags, rights, real);
}

int openat64(int dir, const char *path, int flags, ...) {
    REAL(int, openat64, int, const char *, int, ...);
    RIGHTS
    return opened(dir, path, flags, rights, real);
}

int open(const char *path, int flags, ...) {
    REAL(int, openat, int, const char *, int, ...);
    RIGHTS
    return opened(AT_FDCWD, path, flags, rights, real);
}

int open64(const char *path, int flags, ...) {
    REAL(int, openat64, int, const char *, int, ...);
    RIGHTS
    return opened(AT_FDCWD, path, flags, rights, real);
}

/* A change of what a path names. `grows`: it needs space. */
#define PATH(name, params, types, call, dir, path, grows, what) \
    int name params { \
        static int(*real) types; \
        if (!real) real = (int(*) types)dlsym(RTLD_NEXT, #name); \
        char where[PATH_MAX]; \
        if (!path_below(dir, path, where)) return real call; \
        if (grows && full()) NO_SPACE; \
        AROUND(int, real call, what, where, 0); \
    }

PATH(mkdir, (const char *path, mode_t m), (const char *, mode_t), (path, m), AT_FDCWD, path, 1, "mkdir")
PATH(mkdirat, (int dir, const char *path, mode_t m), (int, const char *, mode_t), (dir, path, m), dir, path, 1, "mkdir")
PATH(rmdir, (const char *path), (const char *), (path), AT_FDCWD, path, 0, "remove")
PATH(unlink, (const char *path), (const char *), (path), AT_FDCWD, path, 0, "remove")
PATH(unlinkat, (int dir, const char *path, int f), (int, const char *, int), (dir, path, f), dir, path, 0, "remove")
PATH(chmod, (const char *path, mode_t m), (const char *, mode_t), (path, m), AT_FDCWD, path, 0, "mode")
PATH(truncate, (const char *path, off_t n), (const char *, off_t), (path, n), AT_FDCWD, path, 0, "write")
PATH(symlink, (const char *to, const char *path), (const char *, const char *), (to, path), AT_FDCWD, path, 1, "create")

/* A change that gives one path the content of another. */
#define PATHS(name, params, types, call, olddir, old, newdir, new, grows, what) \
    int name params { \
        static int(*real) types; \
        if (!real) real = (int(*) types)dlsym(RTLD_NEXT, #name); \
        char from[PATH_MAX], to[PATH_MAX]; \
        if (!path_below(newdir, new, to) || !path_below(olddir, old, from)) return real call; \
        if (grows && full()) NO_SPACE; \
        AROUND(int, real call, what, from, to); \
    }

#define TWO (const char *old, const char *new)
#define TWO_AT (int a, const char *old, int b, const char *new)
PATHS(rename, TWO, (const char *, const char *), (old, new), AT_FDCWD, old, AT_FDCWD, new, 0, "rename")
PATHS(renameat, TWO_AT, (int, const char *, int, const char *), (a, old, b, new), a, old, b, new, 0, "rename")
PATHS(link, TWO, (const char *, const char *), (old, new), AT_FDCWD, old, AT_FDCWD, new, 1, "link")

/* -- by open file -------------------------------------------------------------------------------------------------- */

/* One of write and pwrite, `put` being the real one. */
#define PUT(put) \
    char where[PATH_MAX]; \
    if (!size || !open_below(fd, where)) return put(size); \
    int state = full(); \
    if (state == 1 && size > 1) { \
        tell("write", where, 0); \
        return put(size / 2); \
    } \
    if (state) NO_SPACE; \
    point(BEFORE); \
    if (mode == KILL && size > 1 && count == chosen) put(size / 2); /* torn: the point that now comes is the chosen one */ \
    if (size > 1) point(WITHIN); \
    ssize_t result = put(size); \
    int after = errno; \
    if (result >= 0) tell("write", where, 0); \
    point(AFTER); \
    errno = after; \
    return result

ssize_t write(int fd, const void *data, size_t size) {
    REAL(ssize_t, write, int, const void *, size_t);
#define PLAIN(n) real(fd, data, n)
    PUT(PLAIN);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    REAL(ssize_t, pwrite, int, const void *, size_t, off_t);
#define AT(n) real(fd, data, n, at)
    PUT(AT);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    REAL(ssize_t, pwrite64, int, const void *, size_t, off64_t);
    PUT(AT);
}

/* Any other change of an open file. */
#define OPEN(type, name, params, types, call, fd, grows, what) \
    type name params { \
        static type(*real) types; \
        if (!real) real = (type(*) types)dlsym(RTLD_NEXT, #name); \
        char where[PATH_MAX]; \
        if (!open_below(fd, where)) return real call; \
        if (grows && full()) NO_SPACE; \
        AROUND(type, real call, what, where, 0); \
    }

typedef const struct iovec *Parts;
OPEN(ssize_t, writev, (int fd, Parts p, int n), (int, Parts, int), (fd, p, n), fd, 1, "write")
OPEN(ssize_t, pwritev, (int fd, Parts p, int n, off_t at), (int, Parts, int, off_t), (fd, p, n, at), fd, 1, "write")
OPEN(ssize_t, sendfile, (int to, int from, off_t *at, size_t n), (int, int, off_t *, size_t), (to, from, at, n), to, 1, "write")
OPEN(ssize_t, sendfile64, (int to, int from, off64_t *at, size_t n), (int, int, off64_t *, size_t), (to, from, at, n), to, 1, "write")
OPEN(ssize_t, copy_file_range, (int from, off64_t *a, int to, off64_t *b, size_t n, unsigned f),
     (int, off64_t *, int, off64_t *, size_t, unsigned), (from, a, to, b, n, f), to, 1, "write")
OPEN(int, fallocate, (int fd, int m, off_t at, off_t n), (int, int, off_t, off_t), (fd, m, at, n), fd, 1, "write")
OPEN(int, ftruncate, (int fd, off_t n), (int, off_t), (fd, n), fd, 0, "write")
OPEN(int, ftruncate64, (int fd, off64_t n), (int, off64_t), (fd, n), fd, 0, "write")
OPEN(int, fchmod, (int fd, mode_t m), (int, mode_t), (fd, m), fd, 0, "mode")
OPEN(int, fsync, (int fd), (int), (fd), fd, 0, "sync")
OPEN(int, fdatasync, (int fd), (int), (fd), fd, 0, "sync")

/* Space set aside, which tells of a failure by what it returns. */
#define ALLOCATE(name, type) \
    int name(int fd, type at, type n) { \
        static int (*real)(int, type, type); \
        if (!real) real = (int (*)(int, type, type))dlsym(RTLD_NEXT, #name); \
        char where[PATH_MAX]; \
        if (!open_below(fd, where)) return real(fd, at, n); \
        if (full()) return ENOSPC; \
        AROUND(int, real(fd, at, n), "write", where, 0); \
    }

ALLOCATE(posix_fallocate, off_t)
ALLOCATE(posix_fallocate64, off64_t)
