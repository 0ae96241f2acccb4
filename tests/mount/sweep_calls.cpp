#include "tests/mount/sweep_calls.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cstring>

namespace okcvm::test {

namespace fs = std::filesystem;

std::string answer_of_open(const fs::path& path, int flags, mode_t mode) {
  const FileDescriptor file(::open(path.c_str(), flags | O_CLOEXEC, mode));
  return errno_name(file ? 0 : errno);
}

std::string link_nameless(const fs::path& here) {
  const FileDescriptor file(::open(here.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0640));
  auto seen = ANSWER_OF(::write(file.get(), "nameless", 8));
  seen += std::to_string(stat_of(file).st_nlink);
  seen += ANSWER_OF(::linkat(AT_FDCWD, ("/proc/self/fd/" + std::to_string(file.get())).c_str(), AT_FDCWD,
                             (here / "new").c_str(), AT_SYMLINK_FOLLOW));
  seen += ANSWER_OF(::write(file.get(), " no more", 8));
  seen += std::to_string(stat_of(file).st_nlink);
  return seen += read(here / "new");
}

std::string append_records(const fs::path& here) {
  const FileDescriptor file(::open((here / "file").c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
  std::string seen;
  for (const char* record : {"one\n", "two\n", "three\n"})
    seen += ANSWER_OF(::write(file.get(), record, std::strlen(record)));
  return seen + std::to_string(stat_of(file).st_size);
}

namespace {

std::string create(const fs::path& here) {
  const FileDescriptor file(::open((here / "new").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0640));
  if (!file) return errno_name(errno);
  auto seen = ANSWER_OF(::write(file.get(), "x", 1));
  return seen += std::to_string(stat_of(file).st_size);
}

std::string create_alone(const fs::path& here) {
  const auto path = here / "new";
  const auto first = answer_of_open(path, O_CREAT | O_EXCL | O_RDWR, 0600);
  return first + answer_of_open(path, O_CREAT | O_EXCL | O_RDWR, 0600);
}

std::string unlink_open(const fs::path& here) {
  const FileDescriptor file(::open((here / "file").c_str(), O_RDWR | O_CLOEXEC));
  auto seen = ANSWER_OF(::unlink((here / "file").c_str()));
  seen += ANSWER_OF(::write(file.get(), "more", 4));
  seen += read(file);
  return seen += std::to_string(stat_of(file).st_nlink);
}

std::string rename_as(const fs::path& here, const char* from, const char* to, unsigned flags) {
  return ANSWER_OF(::renameat2(AT_FDCWD, (here / from).c_str(), AT_FDCWD, (here / to).c_str(), flags));
}

std::string replace_open(const fs::path& here) {
  const FileDescriptor replaced(::open((here / "target").c_str(), O_RDWR | O_CLOEXEC));
  auto seen = rename_as(here, "file", "target", 0);
  seen += read(replaced);
  seen += std::to_string(stat_of(replaced).st_nlink);
  return seen += read(here / "target");
}

std::string set_times(const fs::path& here) {
  const timespec times[] = {{1'000'000'001, 1}, {1'000'000'002, 2}};
  const auto set = ANSWER_OF(::utimensat(AT_FDCWD, (here / "file").c_str(), times, 0));
  const auto status = stat_of(here / "file");
  return set + std::to_string(status.st_mtim.tv_sec) + "." + std::to_string(status.st_mtim.tv_nsec);
}

std::string set_attribute(const fs::path& here, const char* name, int flags) {
  return ANSWER_OF(::setxattr((here / "file").c_str(), name, "new", 3, flags));
}

std::string truncate_by_open(const fs::path& here) {
  const FileDescriptor file(::open((here / "file").c_str(), O_RDWR | O_TRUNC | O_CLOEXEC));
  auto seen = std::to_string(stat_of(file).st_size);
  return seen += ANSWER_OF(::write(file.get(), "y", 1));
}

std::string locks(const fs::path& here) {
  const auto path = here / "file";
  const FileDescriptor one(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  const FileDescriptor two(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  struct flock range {};
  range.l_type = F_WRLCK;
  range.l_len = 4;
  std::string seen = ANSWER_OF(::flock(one.get(), LOCK_EX));
  seen += ANSWER_OF(::flock(two.get(), LOCK_EX | LOCK_NB));
  seen += ANSWER_OF(::fcntl(one.get(), F_OFD_SETLK, &range));
  return seen += ANSWER_OF(::fcntl(two.get(), F_OFD_SETLK, &range));
}

/// What is below a directory that was moved knows its new place: a change there is recorded under it.
std::string rename_and_use(const fs::path& here) {
  auto seen = rename_as(here, "dir", "moved", 0);
  const FileDescriptor file(::open((here / "moved/below").c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
  seen += ANSWER_OF(::write(file.get(), "x", 1));
  return seen += ANSWER_OF(::mkdir((here / "moved/d").c_str(), 0755));
}

}  // namespace

const std::vector<Call>& sweep_calls() {
  static const std::vector<Call> calls{
      {"create", ":", create, "new"},
      {"create in a set-group-id directory", "chmod 2777 .; chgrp 12345 .", create, "new", kBob},
      {"create with O_EXCL", ":", create_alone, "new", kAlice},
      {"a file without a name, which is given one", ":", link_nameless, "new", kAlice},
      {"mkdir", ":", [](const fs::path& here) { return ANSWER_OF(::mkdir((here / "new").c_str(), 01777)); },
       "new", kAlice},
      {"mknod", ":",
       [](const fs::path& here) { return ANSWER_OF(::mknod((here / "new").c_str(), S_IFIFO | 0600, 0)); },
       "new", kAlice},
      {"symlink", ":",
       [](const fs::path& here) { return ANSWER_OF(::symlink("somewhere", (here / "new").c_str())); }, "new",
       kAlice},
      {"link", "echo x > file",
       [](const fs::path& here) {
         return ANSWER_OF(::link((here / "file").c_str(), (here / "new").c_str()));
       },
       "new"},
      {"unlink", "echo x > file",
       [](const fs::path& here) { return ANSWER_OF(::unlink((here / "file").c_str())); }, "file"},
      {"unlink of one of two names", "echo x > file; ln file other",
       [](const fs::path& here) { return ANSWER_OF(::unlink((here / "file").c_str())); }, "file"},
      {"unlink while open", "echo content > file", unlink_open, "file"},
      {"rmdir", "mkdir dir", [](const fs::path& here) { return ANSWER_OF(::rmdir((here / "dir").c_str())); },
       "dir"},
      {"rmdir of a full directory", "mkdir dir; touch dir/file",
       [](const fs::path& here) { return ANSWER_OF(::rmdir((here / "dir").c_str())); }, ""},
      {"rename", "echo x > file", [](const fs::path& here) { return rename_as(here, "file", "new", 0); },
       "file"},
      {"rename of a file, and then a change of it", "echo x > file",
       [](const fs::path& here) {
         auto seen = rename_as(here, "file", "new", 0);
         return seen += ANSWER_OF(::chmod((here / "new").c_str(), 0600));
       },
       "new"},
      {"rename to another directory", "echo x > file; mkdir dir",
       [](const fs::path& here) { return rename_as(here, "file", "dir/new", 0); }, "file"},
      {"rename of a directory, and then changes in it", "mkdir dir; echo x > dir/below", rename_and_use,
       "moved/below"},
      {"rename that replaces", "echo x > file; echo y > target",
       [](const fs::path& here) { return rename_as(here, "file", "target", 0); }, "file"},
      {"rename that replaces an open file", "echo x > file; echo replaced > target", replace_open, "file"},
      {"rename without replacing", "echo x > file",
       [](const fs::path& here) { return rename_as(here, "file", "new", RENAME_NOREPLACE); }, "file"},
      {"exchange", "echo x > file; mkdir dir; echo y > dir/below",
       [](const fs::path& here) {
         auto seen = rename_as(here, "file", "dir", RENAME_EXCHANGE);
         return seen += ANSWER_OF(::rmdir((here / "file").c_str()));
       },
       "dir"},
      {"chmod", "echo x > file",
       [](const fs::path& here) { return ANSWER_OF(::chmod((here / "file").c_str(), 0604)); }, "file"},
      {"chown that clears set-id bits", "echo x > file; chmod 6755 file",
       [](const fs::path& here) { return ANSWER_OF(::chown((here / "file").c_str(), 7, 8)); }, "file"},
      {"truncate", "echo content > file",
       [](const fs::path& here) { return ANSWER_OF(::truncate((here / "file").c_str(), 3)); }, "file"},
      {"utimens", "echo x > file", set_times, "file"},
      {"setxattr", "echo x > file", [](const fs::path& here) { return set_attribute(here, "user.name", 0); },
       "file"},
      {"setxattr that must make", "echo x > file",
       [](const fs::path& here) { return set_attribute(here, "user.name", XATTR_CREATE); }, "file"},
      {"setxattr that must make what is there", "echo x > file; setfattr -n user.name -v old file",
       [](const fs::path& here) { return set_attribute(here, "user.name", XATTR_CREATE); }, ""},
      {"setxattr that must replace", "echo x > file; setfattr -n user.name -v old file",
       [](const fs::path& here) { return set_attribute(here, "user.name", XATTR_REPLACE); }, "file"},
      {"removexattr", "echo x > file; setfattr -n user.name -v old file",
       [](const fs::path& here) { return ANSWER_OF(::removexattr((here / "file").c_str(), "user.name")); },
       "file"},
      {"removexattr of nothing", "echo x > file",
       [](const fs::path& here) { return ANSWER_OF(::removexattr((here / "file").c_str(), "user.name")); },
       ""},
      {"append", "echo first > file", append_records, "file"},
      {"write that clears set-id bits", "echo x > file; chmod 6777 file; chown 54322 file; chmod 6777 file",
       append_records, "file", kBob},
      {"open", "echo content > file", [](const fs::path& here) { return read(here / "file"); }, ""},
      {"open that truncates", "echo content > file", truncate_by_open, "file"},
      {"open for writing that truncates", "echo content > file",
       [](const fs::path& here) { return answer_of_open(here / "file", O_WRONLY | O_TRUNC); }, "file"},
      {"allocate more", "echo content > file",
       [](const fs::path& here) {
         const FileDescriptor file(::open((here / "file").c_str(), O_WRONLY | O_CLOEXEC));
         return ANSWER_OF(::fallocate(file.get(), 0, 4, 100));
       },
       "file"},
      {"allocate", "echo content > file",
       [](const fs::path& here) {
         const FileDescriptor file(::open((here / "file").c_str(), O_RDWR | O_CLOEXEC));
         auto seen = ANSWER_OF(::fallocate(file.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 1, 3));
         return seen += std::to_string(stat_of(file).st_size);
       },
       "file"},
      {"locks", "echo content > file", locks, ""},
  };
  return calls;
}

std::ostream& operator<<(std::ostream& out, const Call& call) {
  return out << call.name;
}

}  // namespace okcvm::test
