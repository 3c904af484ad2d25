// A process that is asked where it is: files in a folder are all that is seen.

#include "base/dump_listener.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>

#include "temporary_directory.h"
#include "testing.h"
#include "waiting.h"

namespace {

using namespace tdbg;           // NOLINT: a test.
using namespace tdbg::testing;  // NOLINT: a test.

constexpr std::chrono::milliseconds kInterval{1};

std::atomic<int> handler_fd{-1};

// As faulthandler does; it writes nothing where there is no file.
void Dump(int /*signal*/) {
  if (handler_fd >= 0 && ::write(handler_fd, "where\n", 6) != 6) ::abort();
}

void Take(int /*signal*/) {}

std::string Read(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// A process with a handler of SIGUSR1, and somebody who asks it.
struct Process {
  TemporaryDirectory directory;
  const std::string& root = directory.path();
  std::string folder = root + "/stacks";
  int fd = ::memfd_create("dump", MFD_CLOEXEC);
  std::unique_ptr<DumpListener> listener;

  Process() {
    handler_fd = fd;
    ::signal(SIGUSR1, Dump);
  }
  ~Process() {
    listener.reset();
    ::signal(SIGUSR1, SIG_IGN);
    ::close(fd);
  }

  void Listen(int signal = SIGUSR1) {
    DumpListener::Options options;
    options.folder = folder;
    options.name = "train-0-1";
    options.identity = "{\"rank\": 0}";
    options.signal = signal;
    options.dump_fd = fd;
    options.state = [] { return std::string("forward"); };
    listener = std::make_unique<DumpListener>(options, kInterval);
    EXPECT_TRUE(Until([&] { return std::filesystem::exists(Path(".json")); }));
  }
  [[nodiscard]] std::string Path(const char* suffix) const {
    return folder + "/train-0-1" + suffix;
  }
  // Writes a question that appears whole, as old as is said.
  void Ask(const std::string& question, std::int64_t age_s = 0) const {
    const std::string fresh = folder + "/asking";
    std::ofstream(fresh) << question;
    if (age_s > 0) {
      timespec times[2] = {};
      ::clock_gettime(CLOCK_REALTIME, &times[1]);
      times[1].tv_sec -= age_s;
      times[0] = times[1];
      EXPECT_EQ(::utimensat(AT_FDCWD, fresh.c_str(), times, 0), 0);
    }
    std::filesystem::rename(fresh, folder + "/ask");
  }
  // The answer without the line of the time.
  [[nodiscard]] std::string Answered(const std::string& question) const {
    Ask(question);
    const std::string head = "tdbg-stacks 1 " + question + "\n";
    EXPECT_TRUE(Until([&] { return Read(Path(".txt")).starts_with(head); }));
    const std::string text = Read(Path(".txt"));
    EXPECT_TRUE(text.substr(head.size()).starts_with("time "));
    return text.substr(text.find('\n', head.size()) + 1);
  }
};

TDBG_TEST(AProcessSaysThatItCanBeAskedUntilItEnds) {
  Process process;
  process.Listen();
  EXPECT_EQ(Read(process.Path(".json")), "{\"rank\": 0}");
  EXPECT_EQ(process.Answered("a"), "state forward\nstacks\nwhere\n");
  process.listener.reset();
  EXPECT_TRUE(Until([&] {
    return !std::filesystem::exists(process.Path(".json")) &&
           !std::filesystem::exists(process.Path(".txt"));
  }));
}

TDBG_TEST(EachQuestionIsAnsweredOnce) {
  Process process;
  process.Listen();
  const std::string answer = "state forward\nstacks\nwhere\n";
  EXPECT_EQ(process.Answered("a"), answer);
  std::this_thread::sleep_for(20 * kInterval);
  EXPECT_TRUE(Until([&] { return process.listener->n_answered() == 1; }));
  // The dump before is not in it.
  EXPECT_EQ(process.Answered("b"), answer);
  EXPECT_TRUE(Until([&] { return process.listener->n_answered() == 2; }));
}

TDBG_TEST(AQuestionFromBeforeTheProcessConcernsOthers) {
  Process process;
  std::filesystem::create_directory(process.folder);
  process.Ask("old", 3600);
  process.Listen();
  std::this_thread::sleep_for(20 * kInterval);
  EXPECT_FALSE(std::filesystem::exists(process.Path(".txt")));
  EXPECT_EQ(process.Answered("new"), "state forward\nstacks\nwhere\n");
  EXPECT_TRUE(Until([&] { return process.listener->n_answered() == 1; }));
}

TDBG_TEST(AQuestionBehindALinkIsNotRead) {
  Process process;
  process.Listen();
  std::ofstream(process.root + "/elsewhere") << "linked";
  std::filesystem::create_symlink(process.root + "/elsewhere",
                                  process.folder + "/ask");
  std::this_thread::sleep_for(20 * kInterval);
  EXPECT_FALSE(std::filesystem::exists(process.Path(".txt")));
  EXPECT_EQ(process.Answered("own"), "state forward\nstacks\nwhere\n");
}

TDBG_TEST(AProcessWithoutASignalSaysSo) {
  Process process;
  process.Listen(0);
  EXPECT_EQ(process.Answered("a"), "state forward\ntaken\n");
}

TDBG_TEST(ASignalThatSomebodyTookIsNotSent) {
  Process process;
  process.Listen();
  ::signal(SIGUSR1, Take);
  EXPECT_EQ(process.Answered("a"), "state forward\ntaken\n");
}

TDBG_TEST(AFileThatTheProgramClosedIsNotReadAsADump) {
  Process process;
  process.Listen();
  const int other = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  EXPECT_EQ(::dup2(other, process.fd), process.fd);
  ::close(other);
  EXPECT_EQ(process.Answered("a"), "state forward\nclosed\n");
}

TDBG_TEST(AHandlerThatWritesNothingIsSilent) {
  Process process;
  handler_fd = -1;
  process.Listen();
  EXPECT_EQ(process.Answered("a"), "state forward\nsilent\n");
}

TDBG_TEST(AFolderThatIsNotThereYetIsTriedAgain) {
  Process process;
  process.folder = process.root + "/later/stacks";
  DumpListener::Options options;
  options.folder = process.folder;
  options.name = "train-0-1";
  options.identity = "{}";
  process.listener = std::make_unique<DumpListener>(options, kInterval);
  std::this_thread::sleep_for(5 * kInterval);
  std::filesystem::create_directory(process.root + "/later");
  EXPECT_TRUE(
      Until([&] { return std::filesystem::exists(process.Path(".json")); }));
}

}  // namespace

int main(int argc, char** argv) { return tdbg::testing::Run(argc, argv); }
