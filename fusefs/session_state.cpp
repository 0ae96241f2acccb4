#include "fusefs/session_state.h"

#include <bit>
#include <cstring>
#include <thread>

#include "fusefs/protocol.h"
#include "fusefs/session_state_layout.h"
#include "policy/fault.h"

namespace okcvm::fusefs {
namespace {

constexpr std::uint64_t kMagic = 0x6f6b63766d737402;  // "okcvmst", version 2

constexpr std::array<std::string_view, kOpcodes> kOpcodeNames{
    "",
    "LOOKUP",
    "FORGET",
    "GETATTR",
    "SETATTR",
    "READLINK",
    "SYMLINK",
    "",
    "MKNOD",
    "MKDIR",
    "UNLINK",
    "RMDIR",
    "RENAME",
    "LINK",
    "OPEN",
    "READ",
    "WRITE",
    "STATFS",
    "RELEASE",
    "",
    "FSYNC",
    "SETXATTR",
    "GETXATTR",
    "LISTXATTR",
    "REMOVEXATTR",
    "FLUSH",
    "INIT",
    "OPENDIR",
    "READDIR",
    "RELEASEDIR",
    "FSYNCDIR",
    "GETLK",
    "SETLK",
    "SETLKW",
    "ACCESS",
    "CREATE",
    "INTERRUPT",
    "BMAP",
    "DESTROY",
    "IOCTL",
    "POLL",
    "NOTIFY_REPLY",
    "BATCH_FORGET",
    "FALLOCATE",
    "READDIRPLUS",
    "RENAME2",
    "LSEEK",
    "COPY_FILE_RANGE",
    "SETUPMAPPING",
    "REMOVEMAPPING",
    "SYNCFS",
    "TMPFILE",
    "STATX",
};

/// Whether these bytes are a handshake that libfuse will answer. It would let noise pass in silence.
bool is_handshake(std::span<const std::byte> request) {
  fuse_in_header header{};
  if (request.size() < sizeof header + sizeof(fuse_init_in)) return false;
  std::memcpy(&header, request.data(), sizeof header);
  return header.opcode == FUSE_INIT && header.len == request.size();
}

}  // namespace

Result<std::unique_ptr<SessionState>> SessionState::open(const std::filesystem::path& path,
                                                         const std::filesystem::path& going, Start start) {
  bool is_new = false;
  auto region = SharedRegion::open(path, kRegionSize, is_new);
  if (!region) return fail(region.error());
  if (start == Start::kTakeOver && is_new)
    return fail(Code::kCorrupt, "the run-time state of the session is missing");
  if (start == Start::kAnew) region->clear();
  if (auto ready = region->reserve(sizeof(StateHeader)); !ready) return fail(ready.error());
  std::unique_ptr<SessionState> state(new SessionState(std::move(*region)));
  StateHeader& header = state->header();
  MutexLock lock(state->mutex_);
  state->going_ = GoingNames(going, start);
  if (start == Start::kAnew) {
    std::memset(static_cast<void*>(&header), 0, sizeof header);
    header.magic = kMagic;
    return state;
  }
  if (header.magic != kMagic || header.init_size > kMaxInit || !is_handshake(state->init()) ||
      header.next_file > kMaxFiles)
    return fail(Code::kCorrupt, "the run-time state of the session is of another version or damaged");
  // The records stay: should this daemon die before the requests come again, the next one needs them, too.
  for (std::uint32_t slot = 0; slot < kChanges; ++slot)
    if (const auto unique = header.changes[slot].unique.load()) {
      if (header.changes[slot].references > kReferences)
        return fail(Code::kCorrupt, "the run-time state of the session is damaged");
      state->unfinished_[unique] = {slot, header.changes[slot].fact};
      state->slots_[slot].is_old = true;
      state->slots_[slot].inherited = true;
    }
  state->next_file_ = header.next_file;
  if (auto ready = state->region_.reserve(kFilesOffset + header.next_file * sizeof(FileRecord)); !ready)
    return fail(ready.error());
  for (std::uint32_t slot = 0; slot < header.next_file; ++slot)
    if (file_record(state->region_, slot).id.load() == 0) state->free_files_.push_back(slot);
  return state;
}

SessionState::SessionState(SharedRegion region) : region_(std::move(region)) {}

StateHeader& SessionState::header() const {
  return *reinterpret_cast<StateHeader*>(region_.data());
}

void SessionState::record_init(std::span<const std::byte> request) {
  StateHeader& state = header();
  const std::size_t size = std::min(request.size(), kMaxInit);
  std::memcpy(state.init.data(), request.data(), size);
  state.init_size = static_cast<std::uint32_t>(size);
}

std::span<const std::byte> SessionState::init() const {
  return {header().init.data(), header().init_size};
}

void SessionState::set_protocol(std::uint32_t minor, bool passthrough, bool resend) {
  StateHeader& state = header();
  state.protocol_minor = minor;
  state.passthrough = passthrough;
  state.resend = resend;
}

std::uint32_t SessionState::protocol_minor() const {
  return header().protocol_minor;
}
bool SessionState::passthrough() const {
  return header().passthrough != 0;
}
bool SessionState::can_resend() const {
  return header().resend != 0;
}

// -- Requests being carried out

SessionState::Change SessionState::start(std::uint64_t unique, Fact fact) {
  StateHeader& state = header();
  if (const auto known = unfinished_.find(unique); known != unfinished_.end()) {
    if (slots_[known->second.slot].inherited.exchange(false)) return {this, known->second.slot};
    fact = known->second.fact;
  }
  static std::atomic<std::uint32_t> threads{0};
  thread_local const std::uint32_t home = threads++;  // a thread's own records stay in its processor's cache
  for (std::uint32_t i = 0;; ++i) {
    const std::uint32_t slot = (home + i) % kChanges;
    auto& record = state.changes[slot];
    // One is free, or a dead daemon's, or gets free: few threads keep theirs while they wait. It is claimed
    // with an impossible number first: the fact must be there before the number that vouches for it.
    std::uint64_t free = 0;
    const bool is_mine = record.unique.compare_exchange_strong(free, ~std::uint64_t{0}) ||
                         (i >= kChanges && slots_[slot].inherited.exchange(false));
    if (!is_mine) {
      if (i >= kChanges) std::this_thread::yield();
      continue;
    }
    record.unique.store(~std::uint64_t{0});
    std::atomic_ref(record.fact).store(fact, std::memory_order_relaxed);
    record.references.store(0, std::memory_order_relaxed);
    record.unique.store(unique, std::memory_order_release);
    fault_point("change.begun");
    return {this, slot};
  }
}

/// Who has the change under way may note another one meanwhile.
Fact SessionState::fact_of(std::uint32_t slot) const {
  return std::atomic_ref(header().changes[slot].fact).load(std::memory_order_relaxed);
}

Fact* SessionState::Change::fact() const {
  return &state_->header().changes[slot_].fact;
}

void SessionState::finish(std::uint32_t slot) {
  fault_point("change.answered");
  if (auto& is_old = slots_[slot].is_old; is_old) is_old = false;
  header().changes[slot].unique.store(0, std::memory_order_release);
}

std::uint32_t SessionState::Change::references() const {
  return state_->header().changes[slot_].references.load(std::memory_order_relaxed);
}

std::uint64_t SessionState::Change::reference(std::uint32_t index) const {
  return state_->reference_at(slot_, index).load(std::memory_order_relaxed);
}

void SessionState::Change::set_reference(std::uint32_t index, std::uint64_t node) {
  state_->reference_at(slot_, index).store(node, std::memory_order_relaxed);
}

void SessionState::Change::add_reference(std::uint64_t node) {
  const std::uint32_t index = references();
  if (index >= kReferences) return;
  if (auto& has_more_room = state_->slots_[slot_].has_more_room; index > 0 && !has_more_room) {
    if (!state_->region_.reserve_part(kReferencesOffset + slot_ * kReferencesSize, kReferencesSize)) return;
    has_more_room = true;
  }
  set_reference(index, node);
  state_->header().changes[slot_].references.store(index + 1, std::memory_order_release);
}

std::atomic<std::uint64_t>& SessionState::reference_at(std::uint32_t slot, std::uint32_t index) const {
  if (index == 0) return header().changes[slot].first_reference;
  auto* const more = region_.data() + kReferencesOffset + slot * kReferencesSize;
  return reinterpret_cast<std::atomic<std::uint64_t>*>(more)[index - 1];
}

SessionState::Untold::Untold(SessionState& state) : state_(state) {
  state_.set_untold();
}
SessionState::Untold::~Untold() {
  fault_point("kernel.told");
  const MutexLock lock(state_.mutex_);
  if (--state_.header().untold == 0) state_.forget_going();
}
void SessionState::set_untold() {
  const MutexLock lock(mutex_);
  ++header().untold;
}
bool SessionState::has_untold() const {
  return header().untold != 0;
}
void SessionState::set_all_told() {
  const MutexLock lock(mutex_);
  header().untold = 0;
  forget_going();
}
void SessionState::forget_going() {
  going_.clear();
  header().has_lost_names = 0;
}
void SessionState::note_going(const std::vector<RelPath>& paths) {
  const MutexLock lock(mutex_);
  if (!going_.note(paths)) header().has_lost_names = 1;
}
void SessionState::note_going(const GoingNames::Statuses& statuses) {
  const MutexLock lock(mutex_);
  going_.note(statuses);
}
std::vector<RelPath> SessionState::going() const {
  const MutexLock lock(mutex_);
  return going_.all();
}
GoingNames::Statuses SessionState::going_statuses() const {
  const MutexLock lock(mutex_);
  return going_.statuses();
}
bool SessionState::knows_all_going() const {
  const MutexLock lock(mutex_);
  return header().has_lost_names == 0 && going_.has_all();
}

std::int32_t SessionState::last_backing() const {
  return header().last_backing;
}
void SessionState::set_last_backing(std::int32_t id) {
  header().last_backing = id;
}
std::int32_t SessionState::closing_backing() const {
  return header().closing_backing;
}
void SessionState::set_closing_backing(std::int32_t id) {
  header().closing_backing = id;
}

std::optional<Fact> SessionState::unfinished(std::uint64_t unique) const {
  const auto found = unfinished_.find(unique);
  if (found == unfinished_.end()) return std::nullopt;
  return found->second.fact;
}

std::unordered_set<std::uint64_t> SessionState::handed_out() const {
  std::unordered_set<std::uint64_t> nodes;
  for (std::uint32_t slot = 0; slot < kChanges; ++slot) {
    const auto& change = header().changes[slot];
    if (change.unique.load(std::memory_order_acquire) == 0) continue;
    const auto count = change.references.load(std::memory_order_acquire);
    for (std::uint32_t i = 0; i < count; ++i) nodes.insert(reference_at(slot, i));
  }
  return nodes;
}

bool SessionState::has_unclaimed() const {
  for (std::uint32_t slot = 0; slot < kChanges; ++slot)
    if (slots_[slot].inherited && fact_of(slot)) return true;
  return false;
}

std::vector<Fact> SessionState::old_facts() const {
  std::vector<Fact> facts;
  for (std::uint32_t slot = 0; slot < kChanges; ++slot)
    if (const auto fact = fact_of(slot); slots_[slot].is_old && fact) facts.push_back(fact);
  return facts;
}

void SessionState::forget_unclaimed() {
  for (std::uint32_t slot = 0; slot < kChanges; ++slot)
    if (fact_of(slot) && slots_[slot].inherited.exchange(false)) finish(slot);
}

// -- Counters

void SessionState::count(std::uint32_t opcode, std::uint64_t nanoseconds, int errno_value) {
  StateHeader& state = header();
  auto& counter = state.counters[opcode % kOpcodes];
  counter.count.fetch_add(1, std::memory_order_relaxed);
  counter.nanoseconds.fetch_add(nanoseconds, std::memory_order_relaxed);
  const auto bucket = static_cast<std::size_t>(std::bit_width(nanoseconds / 1000));
  counter.latency[std::min(bucket, counter.latency.size() - 1)].fetch_add(1, std::memory_order_relaxed);
  if (errno_value > 0 && static_cast<std::size_t>(errno_value) < kErrnos)
    state.errors[static_cast<std::size_t>(errno_value)].fetch_add(1, std::memory_order_relaxed);
}

void SessionState::count_denial() {
  header().denials.fetch_add(1, std::memory_order_relaxed);
}

void SessionState::fill(MountStatistics& statistics) const {
  const StateHeader& state = header();
  for (std::size_t opcode = 0; opcode < kOpcodes; ++opcode) {
    const auto& counter = state.counters[opcode];
    if (counter.count == 0) continue;
    MountStatistics::Operation row;
    row.name = kOpcodeNames[opcode].empty() ? "OTHER" : kOpcodeNames[opcode];
    row.count = counter.count;
    row.nanoseconds = counter.nanoseconds;
    for (std::size_t i = 0; i < row.latency.size(); ++i) row.latency[i] = counter.latency[i];
    statistics.operations.push_back(row);
  }
  for (std::size_t i = 0; i < kErrnos; ++i)
    if (state.errors[i]) statistics.errors.emplace_back(static_cast<int>(i), state.errors[i].load());
  statistics.denials = state.denials;
  statistics.open_files = open_count();
  statistics.passthrough = passthrough();
  statistics.protocol_minor = state.protocol_minor;
  statistics.survives_daemon = state.resend != 0;
}

}  // namespace okcvm::fusefs
