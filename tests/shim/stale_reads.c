/* An LD_PRELOAD library that shows a reader what an NFS client shows: the past.
 *
 * Below STALE_PREFIX, whatever was asked once is answered the same for STALE_MS:
 * sizes and times of files, the first 4 KiB of their bytes, and which names a
 * folder has (a name that appears is not there before that time has passed, for a
 * listing or an open).  Bytes beyond the size that was told cannot be read.
 * Opening a file asks nobody, as with the mount option "nocto".
 */

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { kFiles = 4096, kHead = 4096 };

typedef struct {
  ino_t inode;
  int64_t known_at;    /* When somebody met its name first, in ms. */
  int64_t asked_at;    /* When what follows was true; 0: never asked. */
  struct stat about;
  ssize_t n_head;
  char head[kHead];
} File;

static const char* prefix;
static int64_t stale_ms;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static File* files[kFiles];

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

__attribute__((constructor)) static void Start(void) {
  const char* ms = getenv("STALE_MS");
  prefix = getenv("STALE_PREFIX");
  stale_ms = ms ? atoi(ms) : 0;
}

static int64_t Now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000 + 1;
}

static int IsBelow(int fd) {
  char link[64];
  char path[4096];
  if (!prefix) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t n = readlink(link, path, sizeof path - 1);
  if (n < 0) return 0;
  path[n] = 0;
  return strncmp(path, prefix, strlen(prefix)) == 0;
}

/* What is remembered of a file; made when it is met first. */
static File* Remembered(ino_t inode) {
  size_t at = (size_t)inode % kFiles;
  while (files[at] && files[at]->inode != inode) at = (at + 1) % kFiles;
  if (!files[at]) {
    files[at] = calloc(1, sizeof(File));
    files[at]->inode = inode;
    files[at]->known_at = Now();
  }
  return files[at];
}

/* Asks again what was asked too long ago.  `fd` may be of a folder. */
static File* Refreshed(int fd, const struct stat* about) {
  File* file = Remembered(about->st_ino);
  if (file->asked_at && Now() - file->asked_at < stale_ms) return file;
  file->about = *about;
  file->asked_at = Now();
  if (fd >= 0 && S_ISREG(about->st_mode)) {
    file->n_head = NEXT(pread)(fd, file->head, kHead, 0);
  }
  return file;
}

static int IsHidden(ino_t inode) {
  return Now() - Remembered(inode)->known_at < stale_ms;
}

int fstat(int fd, struct stat* about) {
  if (NEXT(fstat)(fd, about) != 0) return -1;
  if (!IsBelow(fd)) return 0;
  pthread_mutex_lock(&lock);
  *about = Refreshed(fd, about)->about;
  pthread_mutex_unlock(&lock);
  return 0;
}

int fstatat(int folder, const char* name, struct stat* about, int flags) {
  if (NEXT(fstatat)(folder, name, about, flags) != 0) return -1;
  if (folder < 0 || !IsBelow(folder)) return 0;
  pthread_mutex_lock(&lock);
  const int is_hidden = IsHidden(about->st_ino);
  if (!is_hidden) {
    const int fd = NEXT(openat)(folder, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    *about = Refreshed(fd, about)->about;
    if (fd >= 0) close(fd);
  }
  pthread_mutex_unlock(&lock);
  if (!is_hidden) return 0;
  errno = ENOENT;
  return -1;
}

int openat(int folder, const char* name, int flags, ...) {
  const int fd = NEXT(openat)(folder, name, flags, 0);
  struct stat about;
  if (fd < 0 || (flags & O_ACCMODE) != O_RDONLY || !IsBelow(fd)) return fd;
  if (NEXT(fstat)(fd, &about) != 0 || !S_ISREG(about.st_mode)) return fd;
  pthread_mutex_lock(&lock);
  const int is_hidden = IsHidden(about.st_ino);
  if (!is_hidden) Refreshed(fd, &about);
  pthread_mutex_unlock(&lock);
  if (!is_hidden) return fd;
  close(fd);
  errno = ENOENT;
  return -1;
}

ssize_t pread(int fd, void* out, size_t n, off_t at) {
  struct stat about;
  if (!IsBelow(fd) || NEXT(fstat)(fd, &about) != 0) {
    return NEXT(pread)(fd, out, n, at);
  }
  pthread_mutex_lock(&lock);
  const File* file = Refreshed(fd, &about);
  ssize_t done = 0;
  if (at < file->n_head) {
    const ssize_t known = file->n_head - at;
    done = (ssize_t)n < known ? (ssize_t)n : known;
    memcpy(out, file->head + at, (size_t)done);
  } else if (at < file->about.st_size) {
    const off_t left = file->about.st_size - at;
    done = NEXT(pread)(fd, out, (off_t)n < left ? n : (size_t)left, at);
  }
  pthread_mutex_unlock(&lock);
  return done;
}

struct dirent* readdir(DIR* listing) {
  for (;;) {
    struct dirent* entry = NEXT(readdir)(listing);
    if (!entry || entry->d_name[0] == '.' || !IsBelow(dirfd(listing))) {
      return entry;
    }
    pthread_mutex_lock(&lock);
    const int is_hidden = IsHidden(entry->d_ino);
    pthread_mutex_unlock(&lock);
    if (!is_hidden) return entry;
  }
}

/* On this platform the calls with 64 in their names are the same. */
_Static_assert(sizeof(struct stat) == sizeof(struct stat64), "64 bits");
int fstat64(int fd, struct stat64* about) {
  return fstat(fd, (struct stat*)about);
}
int fstatat64(int d, const char* p, struct stat64* about, int flags) {
  return fstatat(d, p, (struct stat*)about, flags);
}
int openat64(int folder, const char* name, int flags, ...) {
  return openat(folder, name, flags);
}
ssize_t pread64(int fd, void* out, size_t n, off64_t at) {
  return pread(fd, out, n, at);
}
struct dirent64* readdir64(DIR* listing) {
  return (struct dirent64*)readdir(listing);
}
