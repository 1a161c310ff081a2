/* A library to preload that records what a process has synced, so that a test can simulate a power loss.
 *
 * After every successful fsync or fdatasync of a file or directory under DRYDOCK_SYNCED_ROOT, its bytes or entries, as
 * they were at the call, are copied to the folder DRYDOCK_SYNCED_IMAGE. When the process is killed, the image is exactly
 * what a file system guarantees after a power loss:
 *
 *   files/KEY   the bytes of a file
 *   folders/KEY one line per entry: "f KEY NAME" or "d KEY NAME"
 *
 * KEY is the inode's number and birth time, since names change and inode numbers are reused.
 *
 * Syncs of files whose names end with DRYDOCK_SYNCED_LIES return success without syncing, to test the tests.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Files up to this size are copied as a whole at each sync; larger ones only grow, so their end suffices. */
#define WHOLE (64 * 1024)

static pthread_mutex_t recording = PTHREAD_MUTEX_INITIALIZER;

static void give_up(const char *what) {
    dprintf(2, "synced_image: %s: %s\n", what, strerror(errno));
    abort();
}

static void key_of(const struct statx *of, char *key, size_t size) {
    snprintf(key, size, "%llu-%lld-%u", (unsigned long long)of->stx_ino, (long long)of->stx_btime.tv_sec,
             of->stx_btime.tv_nsec);
}

static char *text(const char *format, ...) {
    char *out;
    va_list arguments;
    va_start(arguments, format);
    if (vasprintf(&out, format, arguments) < 0) give_up("no memory");
    va_end(arguments);
    return out;
}

/* The bytes of a file from `from` to `to`. */
static char *read_range(int fd, off_t from, off_t to) {
    /* The caller's descriptor may be write-only. */
    char *own = text("/proc/self/fd/%d", fd);
    int in = open(own, O_RDONLY | O_CLOEXEC);
    free(own);
    if (in < 0) give_up("open what is synced");
    char *bytes = calloc(1, to - from + 1);
    if (!bytes) give_up("no memory");
    for (off_t at = from; at < to;) {
        ssize_t count = pread(in, bytes + (at - from), to - at, at);
        if (count < 0) give_up("read what is synced");
        if (count == 0) break;
        at += count;
    }
    close(in);
    return bytes;
}

static void write_at(const char *path, int flags, const char *bytes, size_t length, off_t at) {
    int out = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0600);
    if (out < 0) give_up(path);
    for (size_t done = 0; done < length;) {
        ssize_t count = pwrite(out, bytes + done, length - done, at + done);
        if (count < 0) give_up(path);
        done += count;
    }
    close(out);
}

/* Atomic, whenever the process is killed. */
static void replace(const char *path, const char *bytes, size_t length) {
    char *unfinished = text("%s.new", path);
    write_at(unfinished, O_TRUNC, bytes, length, 0);
    if (rename(unfinished, path) < 0) give_up(path);
    free(unfinished);
}

static char *entries_of(const char *folder, size_t *length) {
    char *lines = NULL, key[80];
    FILE *out = open_memstream(&lines, length);
    DIR *found = opendir(folder);
    if (!out || !found) give_up(folder);
    for (struct dirent *entry; (entry = readdir(found));) {
        struct statx of;
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        if (statx(dirfd(found), entry->d_name, AT_SYMLINK_NOFOLLOW, STATX_INO | STATX_BTIME | STATX_TYPE, &of)) {
            /* It was removed by now. */
            continue;
        }
        key_of(&of, key, sizeof key);
        fprintf(out, "%c %s %s\n", S_ISDIR(of.stx_mode) ? 'd' : 'f', key, entry->d_name);
    }
    closedir(found);
    fclose(out);
    return lines;
}

static int synced(int fd, int (*sync)(int)) {
    const char *root = getenv("DRYDOCK_SYNCED_ROOT"), *image = getenv("DRYDOCK_SYNCED_IMAGE");
    char path[PATH_MAX], key[80];
    struct statx of;
    char *own = text("/proc/self/fd/%d", fd);
    ssize_t length = root && image ? readlink(own, path, sizeof path - 1) : -1;
    free(own);
    if (length < 0 || strncmp(path, root, strlen(root)) ||
        statx(fd, "", AT_EMPTY_PATH, STATX_INO | STATX_BTIME | STATX_TYPE | STATX_SIZE, &of)) {
        return sync(fd);
    }
    path[length] = 0;
    key_of(&of, key, sizeof key);
    int is_folder = S_ISDIR(of.stx_mode);
    if (!is_folder && !S_ISREG(of.stx_mode)) return sync(fd);

    const char *lies = getenv("DRYDOCK_SYNCED_LIES");
    size_t end = lies ? strlen(lies) : 0;
    if (end && (size_t)length >= end && !strcmp(path + length - end, lies)) return 0;

    /* A sync covers what existed when it was called. */
    pthread_mutex_lock(&recording);
    char *kept = text("%s/%s/%s", image, is_folder ? "folders" : "files", key);
    struct stat before;
    off_t from = 0;
    if (!is_folder && of.stx_size > WHOLE && !stat(kept, &before) && before.st_size <= (off_t)of.stx_size) {
        from = before.st_size;
    }
    size_t size = is_folder ? 0 : of.stx_size - from;
    char *bytes = is_folder ? entries_of(path, &size) : read_range(fd, from, of.stx_size);
    int result = sync(fd);
    if (result == 0) {
        if (from > 0) {
            write_at(kept, 0, bytes, size, from);
        } else {
            replace(kept, bytes, size);
        }
    }
    free(bytes);
    free(kept);
    pthread_mutex_unlock(&recording);
    return result;
}

static int (*real_fsync)(int), (*real_fdatasync)(int);

__attribute__((constructor)) static void begin(void) {
    real_fsync = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    real_fdatasync = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
}

int fsync(int fd) { return synced(fd, real_fsync); }

int fdatasync(int fd) { return synced(fd, real_fdatasync); }
