#include "tests/differential/generator.h"

#include <linux/falloc.h>
#include <linux/fs.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <numeric>

#include "tests/support/process.h"

namespace okcvm::differential {
namespace {

constexpr std::size_t kRemembered = 48;
constexpr uid_t kNobody = static_cast<uid_t>(-1);  // chown(2): leave it

const std::vector<std::string>& names() {
  static const std::vector<std::string> list{"a",
                                             "b",
                                             "c",
                                             "d",
                                             "e",
                                             "f",
                                             "dir1",
                                             "dir2",
                                             "with space",
                                             ".git",
                                             "\xff\xfe",
                                             "new\nline",
                                             std::string(255, 'n')};
  return list;
}

const std::vector<std::string>& odd_names() {
  static const std::vector<std::string> list{
      std::string(256, 'n'), std::string(1100, 'n'), ".", "a/", "dir1/", ""};
  return list;
}

const std::vector<std::string>& xattr_names() {
  static const std::vector<std::string> list{
      "user.a", "user.b",  "user.c", "user." + std::string(250, 'x'), "user." + std::string(251, 'x'),
      "user.",  "bogus.a", ""};
  return list;
}

}  // namespace

Generator::Generator(std::uint64_t seed, const std::set<std::string>& without)
    : random_(seed), without_(without) {}

Kind Generator::kind() {
  static const int total = [] {
    int sum = 0;
    for (std::size_t i = 0; i < kKinds; ++i) sum += facts_of(static_cast<Kind>(i)).weight;
    return sum;
  }();
  int left = number(total);
  for (std::size_t i = 0;; ++i)
    if ((left -= facts_of(static_cast<Kind>(i)).weight) < 0) return static_cast<Kind>(i);
}

std::string Generator::leaf() {
  return chance(2) ? pick(odd_names()) : pick(names());
}

std::string Generator::some_directory() {
  return directories_.empty() || chance(20) ? "" : pick(directories_);
}

std::string Generator::new_path() {
  auto directory = chance(4) ? any_path() : some_directory();
  if (!directory.empty()) directory += '/';
  return directory + leaf();
}

std::string Generator::any_path() {
  if (known_.empty() || chance(15)) return leaf();
  if (chance(10)) return pick(known_) + "/" + (chance(10) ? ".." : leaf());
  if (chance(2)) return pick(known_) + "/";
  return pick(known_);
}

int Generator::open_slot() {
  return open_.empty() || chance(3) ? number(kSlots) : pick(open_);
}

mode_t Generator::mode() {
  constexpr std::array modes{0644U, 0666U, 0755U,  0777U,  0600U,  0700U,  0640U,  0444U,  0000U,  0111U,
                             0777U, 0777U, 01777U, 02777U, 02775U, 04755U, 06755U, 02644U, 04711U, 06777U};
  return chance(10) ? static_cast<mode_t>(number(010000)) : pick(modes);
}

off_t Generator::offset() {
  constexpr std::array<off_t, 12> offsets{0,    0,    1,     100,    4095,   4096,
                                          4097, 8192, 65536, 131072, 300000, 1 << 20};
  return chance(30) ? number(200000) : pick(offsets);
}

timespec Generator::time() {
  // Never the same time twice: on tmpfs a store to a mapped page that was read before leaves the mtime alone,
  // which would show in whether the next one set is another.
  const long nanoseconds = number(1000000000);
  switch (number(8)) {
    case 0:
      return {0, UTIME_NOW};
    case 1:
      return {0, UTIME_OMIT};
    case 2:
      return {0, nanoseconds};
    case 3:
      return {2147483647, nanoseconds};
    case 4:
      return {-1, nanoseconds};
    case 5:
      return {1, 1000000000};  // EINVAL
    default:
      return {1000000000 + number(500000000), nanoseconds};
  }
}

void Generator::choose_open(Operation& operation) {
  constexpr std::array access{O_RDONLY, O_RDWR, O_RDWR, O_RDWR, O_WRONLY, O_PATH};
  operation.flags = pick(access);
  if (operation.flags == O_PATH) {
    operation.path = any_path();
    if (chance(50)) operation.flags |= O_NOFOLLOW;
    return;
  }
  if (chance(8)) {
    operation.flags |= O_TMPFILE | (chance(20) ? O_EXCL : 0);
    operation.path = some_directory();
    operation.mode = mode();
    return;
  }
  const bool create = chance(60);
  if (create) operation.flags |= O_CREAT;
  if (create && chance(20)) operation.flags |= O_EXCL;
  if (chance(12)) operation.flags |= O_TRUNC;
  if (chance(15)) operation.flags |= O_APPEND;
  if (chance(6)) operation.flags |= O_NOFOLLOW;
  if (chance(5)) operation.flags |= O_NOATIME;
  if (!create && chance(15)) operation.flags = O_RDONLY | O_DIRECTORY;
  operation.path = create && chance(60) ? new_path() : any_path();
  operation.mode = mode();
}

void Generator::choose_for_open_file(Operation& operation) {
  constexpr std::array fallocate_modes{0,
                                       0,
                                       FALLOC_FL_KEEP_SIZE,
                                       FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                                       FALLOC_FL_ZERO_RANGE,
                                       FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE,
                                       FALLOC_FL_PUNCH_HOLE};
  constexpr std::array flocks{LOCK_SH, LOCK_EX, LOCK_UN};
  constexpr std::array range_locks{F_RDLCK, F_WRLCK, F_UNLCK};
  operation.slot = open_slot();
  operation.slot2 = open_slot();
  operation.mapping = number(kMappings);
  operation.offset = offset();
  operation.offset2 = offset();
  operation.length = chance(10) ? number(200000) : number(9000);
  operation.mode = mode();
  operation.flags = number(2);
  if (operation.kind == Kind::kFtruncate) operation.length = chance(3) ? -1 : offset();
  if (operation.kind == Kind::kSeek)
    operation.flags = pick(std::array{SEEK_SET, SEEK_CUR, SEEK_END, SEEK_DATA, SEEK_HOLE});
  if (operation.kind == Kind::kFallocate) operation.flags = pick(fallocate_modes);
  if (operation.kind == Kind::kFlock) operation.flags = pick(flocks);
  if (operation.kind == Kind::kLock || operation.kind == Kind::kTestLock) {
    operation.flags = pick(range_locks);
    operation.offset = number(10) * 100;
    operation.length = number(4) * 100;  // 0: to the end
  }
}

void Generator::choose_link_text(Operation& operation) {
  // At most one step up: stays inside the directory under test wherever a rename may put the link.
  operation.path2 = chance(70) && !known_.empty() ? pick(known_) : pick(names());
  if (chance(15)) operation.path2 = "../" + operation.path2;
  if (chance(3)) operation.path2 = "./" + operation.path2;
  if (chance(2)) operation.path2 = "";
  if (operation.path2.find("/..") != std::string::npos) operation.path2 = "a";
  if (operation.path2 == ".." || operation.path2.starts_with("../..")) operation.path2 = "../b";
}

void Generator::choose_for_path(Operation& operation) {
  constexpr std::array rename_flags{
      0, 0, 0, 0, RENAME_NOREPLACE, RENAME_EXCHANGE, RENAME_NOREPLACE | RENAME_EXCHANGE};
  const auto kind = operation.kind;
  const bool makes =
      kind == Kind::kMkdir || kind == Kind::kMknod || kind == Kind::kSymlink || kind == Kind::kLinkOpen;
  operation.path = makes && chance(90) ? new_path() : any_path();
  operation.path2 = chance(70) ? new_path() : any_path();
  operation.mode = mode();
  operation.length = chance(3) ? -5 : offset();
  operation.slot = open_slot();
  operation.slot2 = open_slot();
  operation.flags = chance(30) ? AT_SYMLINK_NOFOLLOW : 0;
  if (kind == Kind::kRmdir && chance(70)) operation.path = some_directory();
  if (kind == Kind::kMkdir && chance(50)) operation.mode = 0777;
  if (kind == Kind::kMknod)
    operation.mode =
        (operation.mode & 0777) | pick(std::array<mode_t, 4>{S_IFIFO, S_IFSOCK, S_IFREG, S_IFDIR});
  if (kind == Kind::kRename) operation.flags = pick(rename_flags);
  if (kind == Kind::kLink) operation.flags = chance(20) ? AT_SYMLINK_FOLLOW : 0;
  if (kind == Kind::kUnlinkAt) {
    operation.flags = chance(30) ? AT_REMOVEDIR : 0;
    operation.path = leaf();
  }
  if (kind == Kind::kSymlink) choose_link_text(operation);
  if (kind >= Kind::kSetXattr) {
    operation.name = chance(80) ? xattr_names()[static_cast<std::size_t>(number(3))] : pick(xattr_names());
    operation.length = pick(std::array<off_t, 7>{0, 1, 10, 100, 1000, 3000, XATTR_SIZE_MAX + 1});
    operation.flags = pick(std::array<int, 4>{0, 0, XATTR_CREATE, XATTR_REPLACE});
  }
}

Operation Generator::next() {
  const std::array owners{kNobody, static_cast<uid_t>(0), test::kAlice.uid, test::kBob.uid};
  Operation operation;
  do {
    operation.kind = kind();
  } while (without_.contains(std::string(facts_of(operation.kind).name)));
  operation.who = chance(55) ? 0 : number(kUsers);
  operation.seed = static_cast<unsigned int>(random_());
  operation.umask = pick(std::array<mode_t, 5>{022, 022, 0, 077, 002});
  operation.uid = pick(owners);
  operation.gid = pick(owners);
  operation.times = {time(), time()};
  const auto& facts = facts_of(operation.kind);
  if (operation.kind == Kind::kOpen || operation.kind == Kind::kOpenAt) {
    operation.slot = number(kSlots);
    operation.slot2 = open_slot();
    choose_open(operation);
    if (operation.kind == Kind::kOpenAt) operation.path = leaf();
  } else if (facts.uses_path) {
    choose_for_path(operation);
  } else {
    choose_for_open_file(operation);
  }
  // A stranger's chown to nobody and no group is EPERM for a set-id file; while one is open for writing, it
  // cannot be told from the clearing of set-id bits before a write through FUSE, and succeeds.
  const bool is_chown = operation.kind == Kind::kChown || operation.kind == Kind::kFchown;
  if (is_chown && operation.uid == kNobody && operation.gid == kNobody) operation.who = 0;
  // Before a stranger's fallocate the kernel has a FUSE file system clear set-id bits even if the mode turns
  // out not to be supported (tmpfs has no ZERO_RANGE); natively it does not.
  if (operation.kind == Kind::kFallocate && (operation.flags & FALLOC_FL_ZERO_RANGE)) operation.who = 0;
  return operation;
}

void Generator::remember(std::vector<std::string>& list, const std::string& path) {
  // Deep enough for every rule, and far from PATH_MAX.
  // No path that a later ".." could take out of the directory under test.
  if (std::count(path.begin(), path.end(), '/') > 5 || path.empty() || path == "." || path.ends_with("/.") ||
      path.find("..") != std::string::npos)
    return;
  if (list.size() >= kRemembered) list.erase(list.begin() + number(static_cast<int>(list.size())));
  list.push_back(path);
}

void Generator::learn(const Operation& operation, bool succeeded) {
  if (!succeeded) return;
  switch (operation.kind) {
    case Kind::kOpen:
    case Kind::kOpenAt:
      if (std::find(open_.begin(), open_.end(), operation.slot) == open_.end())
        open_.push_back(operation.slot);
      if (operation.kind == Kind::kOpen && (operation.flags & O_TMPFILE) != O_TMPFILE)
        remember(known_, operation.path);
      break;
    case Kind::kClose:
      std::erase(open_, operation.slot);
      break;
    case Kind::kMkdir:
      remember(directories_, operation.path);
      remember(known_, operation.path);
      break;
    case Kind::kMknod:
    case Kind::kLinkOpen:
    case Kind::kSymlink:
      remember(known_, operation.path);
      break;
    case Kind::kRename:
      if (std::erase(directories_, operation.path)) remember(directories_, operation.path2);
      std::erase(known_, operation.path);
      remember(known_, operation.path2);
      break;
    case Kind::kLink:
      remember(known_, operation.path2);
      break;
    case Kind::kUnlink:
      std::erase(known_, operation.path);
      break;
    case Kind::kRmdir:
      std::erase(known_, operation.path);
      std::erase(directories_, operation.path);
      break;
    default:
      break;
  }
}

}  // namespace okcvm::differential
