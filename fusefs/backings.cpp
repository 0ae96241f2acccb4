#include "fusefs/backings.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <limits>
#include <utility>

#include "fusefs/protocol.h"
#include "policy/fault.h"

namespace okcvm::fusefs {
namespace {

std::atomic<std::size_t> kept_in_all{0};
std::atomic<std::size_t> attribute_files_in_all{0};

/// While it stands, this thread cannot keep set-id bits of files that it writes to (CAP_FSETID). A backing
/// file is written to by the kernel with the rights of who registered it.
class WithoutSetId {
 public:
  explicit WithoutSetId(bool wanted) {
    if (!wanted || ::syscall(SYS_capget, &header_, former_.data()) != 0) return;
    auto less = former_;
    less[CAP_TO_INDEX(CAP_FSETID)].effective &= ~CAP_TO_MASK(CAP_FSETID);
    is_changed_ = ::syscall(SYS_capset, &header_, less.data()) == 0;
  }
  ~WithoutSetId() {
    if (is_changed_) ::syscall(SYS_capset, &header_, former_.data());
  }
  WithoutSetId(const WithoutSetId&) = delete;
  WithoutSetId& operator=(const WithoutSetId&) = delete;

 private:
  __user_cap_header_struct header_{_LINUX_CAPABILITY_VERSION_3, 0};
  std::array<__user_cap_data_struct, _LINUX_CAPABILITY_U32S_3> former_{};
  bool is_changed_ = false;
};

bool is_for_writing(int flags) {
  return (flags & O_ACCMODE) != O_RDONLY;
}

}  // namespace

Backings::HeldFile Backings::held_file(std::shared_ptr<FileDescriptor> file) {
  const bool can_write = is_for_writing(::fcntl(file->get(), F_GETFL));
  return {std::move(file), can_write};
}

Backings::~Backings() {
  kept_in_all -= kept_.size();
  attribute_files_in_all -= attribute_files_.size();
}

void Backings::start(int device, bool passthrough) {
  MutexLock lock(mutex_);
  device_ = device;
  passthrough_ = passthrough;
}

void Backings::settle() {
  MutexLock lock(mutex_);
  const auto backings = nodes_.all_backings();
  if (const auto closing = state_.closing_backing();
      closing && std::none_of(backings.begin(), backings.end(),
                              [&](const auto& backing) { return backing.second == closing; }))
    close(closing);
  std::int32_t last = state_.last_backing();
  for (const auto& backing : backings) last = std::max(last, backing.second);
  const auto most = std::min<std::int64_t>(kMostLost, std::numeric_limits<std::int32_t>::max() - last);
  for (std::int32_t i = 1; i <= most; ++i) close(last + i);
  for (const auto& [id, backing_id] : backings) {
    if (nodes_.open_state(id).opens) continue;
    if (may_be_kept(id) && kept_.size() < kMostKept && kept_in_all < kMostKeptInAll)
      keep(id);
    else
      give_back(id, backing_id);
  }
}

void Backings::keep(NodeId id) {
  not_kept_any_more(id);
  std::list<NodeId> place{id};  // first: it may need memory
  kept_at_[id.value] = place.begin();
  kept_.splice(kept_.end(), place);
  ++kept_in_all;
}

/// Marks an inode as being opened for the first time; others that open it wait for the end.
class Backings::Opening {
 public:
  Opening(Backings& owner, NodeId id) : owner_(owner), id_(id) {}
  ~Opening() {
    {
      MutexLock lock(owner_.mutex_);
      owner_.opening_.erase(id_.value);
    }
    owner_.opening_ended_.notify_all();
  }
  Opening(const Opening&) = delete;
  Opening& operator=(const Opening&) = delete;

 private:
  Backings& owner_;
  NodeId id_;
};

Result<Backings::Use> Backings::opened(NodeId id, int flags, bool shared, const OpenFile& open_file) {
  bool may_pass = false;
  {
    MutexLock lock(mutex_);
    while (opening_.contains(id.value)) opening_ended_.wait(mutex_);
    if (auto use = open_another(id, flags)) return std::move(*use);
    may_pass = passthrough_ && nodes_.open_state(id).opens == 0;
    opening_.insert(id.value);
  }
  const Opening opening(*this, id);
  return open_first(id, flags, shared, open_file, may_pass);
}

std::optional<Backings::Use> Backings::open_another(NodeId id, int flags) {
  const OpenState before = nodes_.open_state(id);
  if (before.backing_id) {
    not_kept_any_more(id);
    nodes_.opened(id, flags);
    return Use{before.backing_id, nullptr, {}};
  }
  const auto held = files_.find(id.value);
  if (!before.opens || held == files_.end()) return std::nullopt;
  if (is_for_writing(flags) && !held->second.can_write) return std::nullopt;
  nodes_.opened(id, flags);
  return Use{0, held->second.file, {}};
}

Result<Backings::Use> Backings::open_first(NodeId id, int flags, bool shared, const OpenFile& open_file,
                                           bool may_pass) {
  if (may_pass) {
    auto passed = open_file(Purpose::kPass);
    if (!passed) return fail(passed.error());
    // Where the kernel will not have this file (stacked file systems), reads and writes come to us.
    MutexLock lock(mutex_);  // ids are noted in the order in which they are made
    const protocol::BackingMap map{passed->get(), 0, 0};
    const WithoutSetId writes(shared);
    const int backing_id =
        *passed ? with_faults("backing.open", [&] { return ::ioctl(device_, protocol::kBackingOpen, &map); })
                : -1;
    if (backing_id > 0) {
      fault_point("backing.opened");
      nodes_.set_backing(id, backing_id);
      fault_point("backing.noted");
      state_.set_last_backing(backing_id);
      nodes_.opened(id, flags);
      if (!has_room_for_attribute_file()) return Use{backing_id, nullptr, std::move(*passed)};
      add_attribute_file(id, std::make_shared<FileDescriptor>(std::move(*passed)));
      return Use{backing_id, nullptr, {}};
    }
  }
  {
    const MutexLock lock(mutex_);
    if (files_.size() >= descriptors_for_one_session()) return fail_errno(ENFILE);
  }
  auto served = open_file(Purpose::kServe);
  if (!served) return fail(served.error());
  if (!may_be_held(*served)) return fail_errno(ENFILE);
  const HeldFile held = held_file(std::make_shared<FileDescriptor>(std::move(*served)));
  HeldFile former;  // closed after the lock is released
  MutexLock lock(mutex_);
  former = std::exchange(files_[id.value], held);
  nodes_.opened(id, flags);
  return Use{0, held.file, {}};
}

bool Backings::may_be_kept(NodeId id) const {
  const auto node = nodes_.find(id);
  return node && !node->dead && !rule_of(node->zone).changes_underneath;
}

OpenState Backings::closed(NodeId id, int flags) {
  std::shared_ptr<FileDescriptor> last, last_for_attributes;  // closed after the lock is released
  MutexLock lock(mutex_);
  const OpenState state = nodes_.closed(id, flags);
  if (state.opens) return state;
  last_for_attributes = take_attribute_file(id);
  if (const auto found = files_.find(id.value); found != files_.end()) {
    last = std::move(found->second.file);
    files_.erase(found);
  }
  if (!state.backing_id) return state;
  if (may_be_kept(id)) {
    keep(id);
    if (kept_in_all > kMostKeptInAll || kept_.size() > kMostKept) drop_unused_locked(kept_.front());
  } else {
    drop_unused_locked(id);
  }
  return state;
}

bool Backings::is_mapped(NodeId id, int file) {
  MutexLock lock(mutex_);  // nobody opens it between the look and the note
  const OpenState state = nodes_.open_state(id);
  if (!state.may_be_mapped) return state.mappers != 0;
  if (state.mappers || has_writers(file).value_or(true)) return true;
  nodes_.set_not_mapped(id);
  return false;
}

std::shared_ptr<FileDescriptor> Backings::file(NodeId id, Access access) const {
  MutexLock lock(mutex_);
  const auto found = files_.find(id.value);
  if (found == files_.end() || (access == Access::kWrite && !found->second.can_write)) return nullptr;
  return found->second.file;
}

void Backings::remember_file(NodeId id, std::shared_ptr<FileDescriptor> file) {
  HeldFile held = held_file(std::move(file));  // or the former one, closed after the lock is released
  MutexLock lock(mutex_);
  const OpenState state = nodes_.open_state(id);
  if (state.opens && (!state.writers || held.can_write)) std::swap(files_[id.value], held);
}

bool Backings::has_room_for_attribute_file() const {
  return attribute_files_.size() < kMostAttributeFiles && attribute_files_in_all < kMostAttributeFilesInAll;
}

void Backings::add_attribute_file(NodeId id, std::shared_ptr<FileDescriptor> file) {
  if (attribute_files_.emplace(id.value, std::move(file)).second) ++attribute_files_in_all;
}

std::shared_ptr<FileDescriptor> Backings::take_attribute_file(NodeId id) {
  const auto found = attribute_files_.find(id.value);
  if (found == attribute_files_.end()) return nullptr;
  auto file = std::move(found->second);
  attribute_files_.erase(found);
  --attribute_files_in_all;
  return file;
}

std::shared_ptr<FileDescriptor> Backings::attribute_file(NodeId id) const {
  MutexLock lock(mutex_);
  if (const auto found = attribute_files_.find(id.value); found != attribute_files_.end())
    return found->second;
  const auto found = files_.find(id.value);
  return found == files_.end() ? nullptr : found->second.file;
}

void Backings::remember_attribute_file(NodeId id, std::shared_ptr<FileDescriptor> file) {
  MutexLock lock(mutex_);
  if (nodes_.open_state(id).opens && has_room_for_attribute_file()) add_attribute_file(id, std::move(file));
}

void Backings::drop_unused(NodeId id) {
  MutexLock lock(mutex_);
  drop_unused_locked(id);
}

void Backings::drop_unused_locked(NodeId id) {
  not_kept_any_more(id);
  const OpenState state = nodes_.open_state(id);
  if (!state.opens && state.backing_id) give_back(id, state.backing_id);
}

void Backings::not_kept_any_more(NodeId id) {
  const auto kept = kept_at_.find(id.value);
  if (kept == kept_at_.end()) return;
  kept_.erase(kept->second);
  kept_at_.erase(kept);
  --kept_in_all;
}

Forgotten Backings::forget(NodeId id, std::uint64_t count) {
  MutexLock lock(mutex_);
  const auto backing_id = nodes_.open_state(id).backing_id;
  state_.set_closing_backing(backing_id);
  const Forgotten forgotten = nodes_.forget(id, count);
  if (forgotten.gone) {
    not_kept_any_more(id);
    files_.erase(id.value);
    take_attribute_file(id);
    if (backing_id) close(backing_id);
  }
  state_.set_closing_backing(0);
  return forgotten;
}

void Backings::give_back(NodeId id, std::int32_t backing_id) {
  state_.set_closing_backing(backing_id);
  nodes_.set_backing(id, 0);
  fault_point("backing.close");
  close(backing_id);
  state_.set_closing_backing(0);
}

void Backings::close(std::int32_t backing_id) const {
  const auto id = static_cast<std::uint32_t>(backing_id);
  ::ioctl(device_, protocol::kBackingClose, &id);
}

}  // namespace okcvm::fusefs
