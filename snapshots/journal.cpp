#include "snapshots/journal.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "policy/fault.h"
#include "snapshots/io.h"

namespace okcvm::snapshots {
namespace {

constexpr const char* kName = "journal";
constexpr const char* kBefore = "before ";
constexpr const char* kBase = "\nbase ";

}  // namespace

Result<void> Journal::write(const Repository& repository) const {
  return replace_file(repository.own_folder(), kName,
                      std::string(kBefore) + before.hex() + kBase + base.hex() + "\n", true);
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

}  // namespace okcvm::snapshots
