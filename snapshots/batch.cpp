#include "snapshots/batch.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "policy/fault.h"
#include "policy/trees.h"
#include "snapshots/compressor.h"
#include "snapshots/disk.h"
#include "snapshots/io.h"

namespace okcvm::snapshots {
namespace {

constexpr std::string_view kWhat = "the objects of a snapshot cannot be written";
constexpr const char* kIntent = "intent";
constexpr const char* kDraft = "new";  // of the pack, in the waiting room

FileDescriptor open_folder(int directory, const std::string& name) {
  return FileDescriptor(::openat(directory, name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
}

FileDescriptor open_waiting_room(const Repository& repository) {
  ::mkdirat(repository.own_folder(), kIncoming, 0700);  // fails where it is, as it should be
  return open_folder(repository.own_folder(), kIncoming);
}

std::string pack_file(const Oid& pack, const char* ending) {
  return "objects/pack/pack-" + pack.hex() + ending;
}

/// Where a loose object stands below an object folder: "ab/cdef...".
std::string loose_file(const Oid& oid) {
  const std::string hex = oid.hex();
  return hex.substr(0, 2) + "/" + hex.substr(2);
}

}  // namespace

Batch::Batch(Repository& repository, Trust trust)
    : repository_(&repository), incoming_(open_waiting_room(repository)), trust_(trust) {
  compressor_ = std::make_unique<Compressor>(incoming_.get(), kDraft);
}

Batch::Batch() = default;

Batch::~Batch() {
  compressor_.reset();
  if (dirty_) static_cast<void>(clear_waiting_room(*repository_));
}

Result<void> Batch::clear_waiting_room(const Repository& repository) {
  const auto folder = open_waiting_room(repository);
  if (!folder) return fail_errno(errno, kWhat);
  const auto rows = rows_in(folder.get());
  if (!rows) return fail(rows.error());
  for (const auto& row : *rows)
    if (auto removed = remove_tree(folder.get(), row.name.c_str()); !removed) return removed;
  return {};
}

bool Batch::has(const Oid& oid) const {
  return trust_ == Trust::kIsDamaged ? repository_->holds(oid) : repository_->contains(oid);
}

Result<Oid> Batch::add(ObjectKind kind, std::string bytes) {
  const Oid oid = hash_object(kind, bytes);
  if (!stores()) return oid;
  if (!added_.insert(oid).second || (trust_ != Trust::kHoldsNothing && has(oid))) return oid;
  dirty_ = true;
  if (auto added = compressor_->add(oid, kind, std::move(bytes)); !added) return fail(added.error());
  return oid;
}

Result<BlobStream> Batch::open_blob(std::uint64_t size, bool compress) {
  if (!stores()) return BlobStream::hash_only(size);
  dirty_ = true;
  return BlobStream::store(incoming_.get(), std::to_string(++drafts_), size, compress);
}

Result<Oid> Batch::close_blob(BlobStream stream) {
  auto oid = stream.finish();
  if (!oid || !stores()) return oid;
  std::string draft = std::to_string(drafts_);
  if (added_.insert(*oid).second && !has(*oid))
    loose_.push_back({*oid, std::move(draft)});
  else
    ::unlinkat(incoming_.get(), draft.c_str(), 0);  // its room is needed
  return oid;
}

Result<std::string> Batch::intent(const Oid& commit, const Oid& pack) const {
  const auto newest = repository_->ref(kMainRef);
  if (!newest) return fail(newest.error());
  std::string text = "commit " + commit.hex() + "\npack " + pack.hex() + "\n";
  if (*newest) text += "after " + (*newest)->hex() + "\n";
  for (const auto& loose : loose_) text += "loose " + loose.oid.hex() + "\n";
  return text;
}

Result<void> Batch::publish(const Oid& commit) {
  if (!stores()) return {};
  auto pack = compressor_->finish();
  if (!pack) return fail(pack.error());
  const auto text = intent(commit, pack->value_or(Oid{}));
  if (!text) return fail(text.error());
  if (auto kept = replace_file(repository_->own_folder(), kIntent, *text, Durability::kLater); !kept)
    return kept;
  if (auto in = bring_in(pack->value_or(Oid{})); !in) {
    const Error failed = in.error();
    // The ref was not moved: this removes what had come in already.
    if (auto undone = recover(*repository_); !undone) return fail(undone.error());
    return fail(failed);
  }
  repository_->refresh();
  return {};
}

Result<void> Batch::bring_in(const Oid& pack) {
  const int to = repository_->folder();
  for (const auto& [oid, draft] : loose_) {
    fault_point("batch.loose");
    if (const int injected = fault_error("batch.loose")) return fail_errno(injected, kWhat);
    const std::string file = loose_file(oid);
    const std::string folder = "objects/" + file.substr(0, 2);
    if (::mkdirat(to, folder.c_str(), 0700) != 0 && errno != EEXIST) return fail_errno(errno, kWhat);
    if (::renameat(incoming_.get(), draft.c_str(), to, ("objects/" + file).c_str()) != 0)
      return fail_errno(errno, kWhat);
    if (const auto opened = open_folder(to, folder); !opened || ::fsync(opened.get()) != 0)
      return fail_errno(errno, kWhat);
  }
  if (!loose_.empty())
    if (const auto opened = open_folder(to, "objects"); !opened || ::fsync(opened.get()) != 0)
      return fail_errno(errno, kWhat);
  if (pack.is_none()) return {};
  // The pack first: git looks for indexes, and an index without its pack would be an error.
  for (const char* ending : {".pack", ".idx"}) {
    fault_point("batch.pack");
    if (const int injected = fault_error("batch.pack")) return fail_errno(injected, kWhat);
    if (::renameat(incoming_.get(), (std::string(kDraft) + ending).c_str(), to,
                   pack_file(pack, ending).c_str()) != 0)
      return fail_errno(errno, kWhat);
  }
  if (drafts_ == 0) dirty_ = false;
  if (const auto opened = open_folder(to, "objects/pack"); !opened || ::fsync(opened.get()) != 0)
    return fail_errno(errno, kWhat);
  return {};
}

void Batch::drop_intent(Repository& repository) {
  fault_point("batch.drop_intent");
  ::unlinkat(repository.own_folder(), kIntent, 0);
}

Result<bool> Batch::recover(Repository& repository) {
  bool untold = false;
  const auto text = read_file(repository.own_folder(), kIntent);
  if (!text && text.error().errno_value != ENOENT) return fail(text.error());
  if (text) {
    std::optional<Oid> commit, after;
    std::vector<std::string> files;
    for (std::size_t start = 0; start < text->size();) {
      const std::size_t end = std::min(text->find('\n', start), text->size());
      const std::string_view line = std::string_view(*text).substr(start, end - start);
      const auto space = line.find(' ');
      const auto oid = space == line.npos ? std::nullopt : Oid::parse(line.substr(space + 1));
      if (oid && line.starts_with("commit ")) commit = oid;
      if (oid && line.starts_with("after ")) after = oid;
      if (oid && !oid->is_none() && line.starts_with("pack ")) {
        files.push_back(pack_file(*oid, ".idx"));
        files.push_back(pack_file(*oid, ".pack"));
      }
      if (oid && line.starts_with("loose ")) files.push_back("objects/" + loose_file(*oid));
      start = end + 1;
    }
    const auto newest = repository.ref(kMainRef), base = repository.ref(kBaseRef);
    for (const auto* ref : {&newest, &base})
      if (!*ref) return fail(ref->error());
    const bool named = commit && (*newest == commit || *base == commit);
    untold = named && *newest == commit;
    // An older one may come back with a loss of power: by now its objects are those of the history.
    const bool is_latest = *newest == after;
    if (!named && is_latest) {
      repository.will_lose_packs();
      for (const auto& file : files) {
        fault_point("batch.recover");
        if (::unlinkat(repository.folder(), file.c_str(), 0) != 0 && errno != ENOENT)
          return fail_errno(errno, kWhat);
      }
      if (auto opened = repository.reopen(); !opened) return fail(opened.error());
    }
    if (!untold) drop_intent(repository);
  }
  return untold;
}

}  // namespace okcvm::snapshots
