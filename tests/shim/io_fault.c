/* An LD_PRELOAD library that lets system calls on chosen files fail or hang.
 *
 * Calls are those that tdbg's writer makes: open, pwrite, fdatasync, fsync,
 * fallocate, ftruncate, mkdir.  Chosen are those whose path, or the path behind
 * whose descriptor, starts with IO_FAULT_PREFIX.
 *
 *   IO_FAULT_PREFIX    the start of the path
 *   IO_FAULT_AT        fail the n-th such call, from 1; 0: only count
 *   IO_FAULT_ERRNO     with this errno; "hang": never return
 *   IO_FAULT_FOREVER   1: also every call after it
 *   IO_FAULT_COUNTERS  a file of 3 u64, kept up to date: calls seen, calls
 *                      failed, calls seen in another process (a forked child)
 */

#define _GNU_SOURCE
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
#include <sys/types.h>
#include <unistd.h>

typedef struct {
  _Atomic uint64_t calls;
  _Atomic uint64_t failed;
  _Atomic uint64_t foreign;
} Counters;

static const char* prefix;
static uint64_t fail_at;
static int fail_errno; /* -1: hang */
static int forever;
static pid_t owner;
static Counters no_counters;
static Counters* counters = &no_counters;

__attribute__((constructor)) static void Start(void) {
  prefix = getenv("IO_FAULT_PREFIX");
  const char* at = getenv("IO_FAULT_AT");
  const char* error = getenv("IO_FAULT_ERRNO");
  const char* always = getenv("IO_FAULT_FOREVER");
  const char* path = getenv("IO_FAULT_COUNTERS");
  owner = getpid();
  fail_at = at ? strtoull(at, NULL, 10) : 0;
  fail_errno = !error ? EIO : strcmp(error, "hang") == 0 ? -1 : atoi(error);
  forever = always && strcmp(always, "1") == 0;
  if (path) {
    const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd >= 0 && ftruncate(fd, sizeof(Counters)) == 0) {
      void* map = mmap(NULL, sizeof(Counters), PROT_READ | PROT_WRITE,
                       MAP_SHARED, fd, 0);
      if (map != MAP_FAILED) counters = map;
    }
    if (fd >= 0) close(fd);
  }
}

/* The same from within: for a child that was forked before its case is known.
 */
void io_fault_arm(const char* new_prefix, uint64_t at, int error, int always) {
  prefix = new_prefix; /* The caller keeps it. */
  fail_at = at;
  fail_errno = error;
  forever = always;
  owner = getpid();
  counters = &no_counters;
  memset(&no_counters, 0, sizeof no_counters);
}
uint64_t io_fault_calls(void) { return counters->calls; }
uint64_t io_fault_failed(void) { return counters->failed; }

/* Whether this call is to fail; errno is set then. */
static int Fails(const char* path) {
  if (!prefix || !path || strncmp(path, prefix, strlen(prefix)) != 0) return 0;
  if (getpid() != owner) {
    atomic_fetch_add(&counters->foreign, 1);
    return 0;
  }
  const uint64_t n = atomic_fetch_add(&counters->calls, 1) + 1;
  if (!fail_at || (forever ? n < fail_at : n != fail_at)) return 0;
  atomic_fetch_add(&counters->failed, 1);
  while (fail_errno < 0) pause();
  errno = fail_errno;
  return 1;
}

static int DescriptorFails(int fd) {
  char link[64];
  char path[4096];
  const int saved = errno;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t n = readlink(link, path, sizeof path - 1);
  errno = saved;
  if (n < 0) return 0;
  path[n] = 0;
  return Fails(path);
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

#define OPEN(name)                                                 \
  int name(const char* path, int flags, ...) {                     \
    mode_t mode = 0;                                               \
    if (flags & (O_CREAT | __O_TMPFILE)) {                         \
      va_list arguments;                                           \
      va_start(arguments, flags);                                  \
      mode = va_arg(arguments, mode_t);                            \
      va_end(arguments);                                           \
    }                                                              \
    if ((flags & O_ACCMODE) != O_RDONLY && Fails(path)) return -1; \
    return NEXT(name)(path, flags, mode);                          \
  }
OPEN(open)
OPEN(open64)

#define PWRITE(name, offset_type)                                        \
  ssize_t name(int fd, const void* data, size_t n, offset_type offset) { \
    return DescriptorFails(fd) ? -1 : NEXT(name)(fd, data, n, offset);   \
  }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

#define FALLOCATE(name, offset_type)                                   \
  int name(int fd, int mode, offset_type offset, offset_type n) {      \
    return DescriptorFails(fd) ? -1 : NEXT(name)(fd, mode, offset, n); \
  }
FALLOCATE(fallocate, off_t)
FALLOCATE(fallocate64, off64_t)

#define FTRUNCATE(name, offset_type)                          \
  int name(int fd, offset_type length) {                      \
    return DescriptorFails(fd) ? -1 : NEXT(name)(fd, length); \
  }
FTRUNCATE(ftruncate, off_t)
FTRUNCATE(ftruncate64, off64_t)

int fdatasync(int fd) { return DescriptorFails(fd) ? -1 : NEXT(fdatasync)(fd); }
int fsync(int fd) { return DescriptorFails(fd) ? -1 : NEXT(fsync)(fd); }
int mkdir(const char* path, mode_t mode) {
  return Fails(path) ? -1 : NEXT(mkdir)(path, mode);
}
