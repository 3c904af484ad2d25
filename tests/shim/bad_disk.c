/* An LD_PRELOAD library that makes a file system slow, sick or dead for a while.
 *
 * Every call of the C library on files whose path starts with BAD_DISK_PREFIX is
 * counted, and then delayed, kept for ever or failed, as the file that
 * BAD_DISK_CONTROL names says at that moment.  A test changes it while the
 * program runs; its layout is that of Control.
 */

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

typedef struct {
  _Atomic int32_t error;  /* The errno of calls that fail; 0: none do. */
  _Atomic int32_t delay;  /* What each call takes, in ms; -1: it never returns. */
  _Atomic int32_t which;  /* Of which calls: 1 those that read, 2 that write. */
  _Atomic int32_t every;  /* Only each so many fail or wait; 0 and 1: all. */
  _Atomic uint64_t calls; /* Seen so far. */
  _Atomic uint64_t of_first_thread; /* Of these, by the process's first one. */
  _Atomic uint64_t failed;
  _Atomic uint64_t kept; /* That wait now. */
} Control;

enum { kReads = 1, kWrites = 2 };

static const char* prefix;
static size_t prefix_length;
static Control* control;

__attribute__((constructor)) static void Start(void) {
  const char* path = getenv("BAD_DISK_CONTROL");
  const char* start = getenv("BAD_DISK_PREFIX");
  if (!path || !start) return;
  const int fd = open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return;
  void* map = mmap(NULL, sizeof(Control), PROT_READ | PROT_WRITE, MAP_SHARED,
                   fd, 0);
  close(fd);
  if (map == MAP_FAILED) return;
  prefix = start;
  prefix_length = strlen(start);
  control = map;
}

/* The absolute path of a name below a directory's descriptor. */
static const char* Absolute(int directory, const char* name, char* out,
                            size_t n) {
  if (name && name[0] == '/') return name;
  char link[64];
  if (directory == AT_FDCWD) {
    snprintf(link, sizeof link, "/proc/self/cwd");
  } else {
    snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
  }
  const ssize_t length = readlink(link, out, n - 1);
  if (length < 0) return "";
  out[length] = 0;
  if (name && name[0]) snprintf(out + length, n - (size_t)length, "/%s", name);
  return out;
}

/* Whether a call is to fail; errno is set then. */
static int Meets(int kind, int directory, const char* name) {
  if (!control) return 0;
  const int saved = errno;
  char memory[8192];
  const char* path = Absolute(directory, name, memory, sizeof memory);
  errno = saved;
  if (strncmp(path, prefix, prefix_length) != 0) return 0;
  const uint64_t n = atomic_fetch_add(&control->calls, 1);
  if (syscall(SYS_gettid) == getpid()) {
    atomic_fetch_add(&control->of_first_thread, 1);
  }
  const int32_t every = atomic_load(&control->every);
  if (!(atomic_load(&control->which) & kind)) return 0;
  if (every > 1 && n % (uint64_t)every != 0) return 0;
  const int32_t delay = atomic_load(&control->delay);
  if (delay) atomic_fetch_add(&control->kept, 1);
  if (delay > 0) usleep((useconds_t)delay * 1000);
  while (atomic_load(&control->delay) < 0) usleep(5000);
  if (delay) atomic_fetch_sub(&control->kept, 1);
  const int32_t error = atomic_load(&control->error);
  errno = saved;
  if (!error) return 0;
  atomic_fetch_add(&control->failed, 1);
  errno = error;
  return 1;
}

static int KindOf(int flags) {
  return (flags & O_ACCMODE) != O_RDONLY || (flags & O_CREAT) ? kWrites
                                                              : kReads;
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define MODE_OF(flags)                         \
  mode_t mode = 0;                             \
  if (flags & (O_CREAT | __O_TMPFILE)) {       \
    va_list arguments;                         \
    va_start(arguments, flags);                \
    mode = va_arg(arguments, mode_t);          \
    va_end(arguments);                         \
  }
#define OPEN(name)                                              \
  int name(const char* path, int flags, ...) {                  \
    MODE_OF(flags)                                              \
    if (Meets(KindOf(flags), AT_FDCWD, path)) return -1;        \
    return NEXT(name)(path, flags, mode);                       \
  }
#define OPENAT(name)                                            \
  int name(int directory, const char* path, int flags, ...) {   \
    MODE_OF(flags)                                              \
    if (Meets(KindOf(flags), directory, path)) return -1;       \
    return NEXT(name)(directory, path, flags, mode);            \
  }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

/* Calls that answer -1 when they fail. */
#define CALL(kind, name, type, directory, path, parameters, arguments) \
  type name parameters {                                               \
    if (Meets(kind, directory, path)) return -1;                       \
    return NEXT(name) arguments;                                       \
  }
#define STAT(name, structure)                                               \
  CALL(kReads, name, int, AT_FDCWD, p, (const char* p, struct structure* s), \
       (p, s))
STAT(stat, stat)
STAT(stat64, stat64)
STAT(lstat, stat)
STAT(lstat64, stat64)
#define FSTAT(name, structure) \
  CALL(kReads, name, int, fd, NULL, (int fd, struct structure* s), (fd, s))
FSTAT(fstat, stat)
FSTAT(fstat64, stat64)
#define FSTATAT(name, structure)                                      \
  CALL(kReads, name, int, d, p,                                       \
       (int d, const char* p, struct structure* s, int f), (d, p, s, f))
FSTATAT(fstatat, stat)
FSTATAT(fstatat64, stat64)
CALL(kReads, statvfs, int, AT_FDCWD, p, (const char* p, struct statvfs* s),
     (p, s))
CALL(kReads, statvfs64, int, AT_FDCWD, p, (const char* p, struct statvfs64* s),
     (p, s))
CALL(kReads, access, int, AT_FDCWD, p, (const char* p, int m), (p, m))
CALL(kReads, read, ssize_t, fd, NULL, (int fd, void* b, size_t n), (fd, b, n))
CALL(kReads, pread, ssize_t, fd, NULL,
     (int fd, void* b, size_t n, off_t at), (fd, b, n, at))
CALL(kReads, pread64, ssize_t, fd, NULL,
     (int fd, void* b, size_t n, off64_t at), (fd, b, n, at))
CALL(kWrites, write, ssize_t, fd, NULL, (int fd, const void* b, size_t n),
     (fd, b, n))
CALL(kWrites, pwrite, ssize_t, fd, NULL,
     (int fd, const void* b, size_t n, off_t at), (fd, b, n, at))
CALL(kWrites, pwrite64, ssize_t, fd, NULL,
     (int fd, const void* b, size_t n, off64_t at), (fd, b, n, at))
CALL(kWrites, fsync, int, fd, NULL, (int fd), (fd))
CALL(kWrites, fdatasync, int, fd, NULL, (int fd), (fd))
CALL(kWrites, fallocate, int, fd, NULL,
     (int fd, int m, off_t at, off_t n), (fd, m, at, n))
CALL(kWrites, fallocate64, int, fd, NULL,
     (int fd, int m, off64_t at, off64_t n), (fd, m, at, n))
CALL(kWrites, ftruncate, int, fd, NULL, (int fd, off_t n), (fd, n))
CALL(kWrites, ftruncate64, int, fd, NULL, (int fd, off64_t n), (fd, n))
CALL(kWrites, mkdir, int, AT_FDCWD, p, (const char* p, mode_t m), (p, m))
CALL(kWrites, link, int, AT_FDCWD, p, (const char* o, const char* p), (o, p))
CALL(kWrites, linkat, int, d, p,
     (int e, const char* o, int d, const char* p, int f), (e, o, d, p, f))
CALL(kWrites, rename, int, AT_FDCWD, p, (const char* o, const char* p), (o, p))
CALL(kWrites, renameat, int, d, p,
     (int e, const char* o, int d, const char* p), (e, o, d, p))
CALL(kWrites, unlink, int, AT_FDCWD, p, (const char* p), (p))
CALL(kWrites, unlinkat, int, d, p, (int d, const char* p, int f), (d, p, f))

DIR* opendir(const char* path) {
  return Meets(kReads, AT_FDCWD, path) ? NULL : NEXT(opendir)(path);
}
struct dirent* readdir(DIR* listing) {
  return Meets(kReads, dirfd(listing), NULL) ? NULL : NEXT(readdir)(listing);
}
struct dirent64* readdir64(DIR* listing) {
  return Meets(kReads, dirfd(listing), NULL) ? NULL : NEXT(readdir64)(listing);
}
