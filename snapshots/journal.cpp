#include "snapshots/journal.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "policy/fault.h"
#include "snapshots/io.h"

namespace okcvm::snapshots {
namespace {

constexpr const char* kName = "journal";  // is_half_restored() looks for it, too
constexpr const char* kBrokenOff = "broken-off";
constexpr const char* kBefore = "before ";
constexpr const char* kBase = "\nbase ";

}  // namespace

Result<void> Journal::write(const Repository& repository) const {
  return replace_file(repository.own_folder(), kName,
                      std::string(kBefore) + before.hex() + kBase + base.hex() + "\n", Durability::kNow);
}

Result<std::optional<Journal>> Journal::read(const Repository& repository) {
  const auto text = read_file(repository.own_folder(), kName);
  if (!text && text.error().errno_value == ENOENT) return std::optional<Journal>();
  if (!text) return fail(text.error());
  const auto oid_after = [&text](std::string_view key) {
    const auto at = text->find(key);
    return at == text->npos ? std::nullopt
                            : Oid::parse(std::string_view(*text).substr(at + key.size(), Oid::kHexSize));
  };
  const auto before = oid_after(kBefore), base = oid_after(kBase);
  if (!before || !base) return fail(Code::kCorrupt, "the journal of a restore is damaged");
  return std::optional(Journal{*before, *base});
}

Result<void> Journal::remove(const Repository& repository) {
  fault_point("journal.remove");
  if (::unlinkat(repository.own_folder(), kName, 0) != 0 && errno != ENOENT)
    return fail_errno(errno, "the journal of a restore cannot be removed");
  if (::fsync(repository.own_folder()) != 0)
    return fail_errno(errno, "the journal of a restore cannot be removed");
  return {};
}

Result<void> Journal::give_up(const std::filesystem::path& repository) {
  const FileDescriptor folder(
      ::open((repository / kOwnFolder).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
  fault_point("journal.give_up");
  if (folder && ::renameat(folder.get(), kName, folder.get(), kBrokenOff) == 0 && ::fsync(folder.get()) == 0)
    return {};
  if (errno == ENOENT) return {};
  return fail_errno(errno, "a restore was broken off, and its journal cannot be put aside");
}

bool Journal::was_given_up(const Repository& repository) {
  return ::faccessat(repository.own_folder(), kBrokenOff, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

void Journal::forget_given_up(const Repository& repository) {
  fault_point("journal.forget_given_up");
  ::unlinkat(repository.own_folder(), kBrokenOff, 0);
}

}  // namespace okcvm::snapshots
