#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <future>
#include <mutex>
#include <thread>

#include "fusefs/channel.h"
#include "fusefs/dispatch.h"
#include "fusefs/mount_point.h"
#include "fusefs/notifier.h"
#include "fusefs/path_files.h"
#include "fusefs/request_loop.h"
#include "fusefs/session_mount.h"
#include "fusefs/state_files.h"
#include "policy/fault.h"

namespace okcvm::fusefs {
namespace {

constexpr std::chrono::seconds kHandshakePatience{10};
constexpr std::chrono::milliseconds kClosingPatience{300};
constexpr std::chrono::seconds kWritingPatience{60};  // for the pages of one file
constexpr std::chrono::seconds kTellingPatience{2};   // programs are held up meanwhile

/// libfuse insists on one; RequestLoop reads the channel by itself.
ssize_t read_nothing(int, void*, std::size_t, void*) {
  errno = ENOSYS;
  return -1;
}

ssize_t write_channel(int, iovec* parts, int count, void* user_data) {
  auto& channel = static_cast<Dispatcher*>(user_data)->channel;
  return channel.write({parts, static_cast<std::size_t>(count)});
}

class MountedSession final : public SessionMount {
 public:
  static Result<std::unique_ptr<SessionMount>> start(MountConfig config, FileDescriptor device, bool adopt);
  ~MountedSession() override;

  Result<void> unmount(bool force) override;
  void abandon() override;
  int device() const override { return device_.get(); }
  bool is_mounted() const override { return loop_ && !loop_->ended(); }
  Files& files() override { return files_; }

  ChangeSet cut_changes() override;
  void retire_changes(const ChangeSet& changes) override { changes_.retire(changes); }
  void mark_changed(const std::vector<RelPath>& paths) override;
  std::unique_ptr<Hold> hold() override;

  Result<void> load_skill(Skill skill) override;
  Result<void> unload_skill(const Name& name) override;
  void set_metadata(std::string metadata) override;
  MountStatistics statistics() const override;

 private:
  class SessionHold;

  MountedSession(MountConfig config, FileDescriptor device, std::unique_ptr<Workspace> workspace,
                 NodeTable nodes, ChangeLog changes, SessionState state, bool adopt);
  Result<void> run();
  void end_loop();
  /// Whether no file is open; the kernel tells of a close(2) a moment later.
  bool all_closed_within(std::chrono::milliseconds time) const;
  void settle_after_take_over();
  void tell_everything();
  std::optional<RelPath> tell_of(const Node& node);
  void add_names_in(NodeId id, std::vector<RelPath>& paths);
  void forget_names();
  void fetch_mapped_stores();
  ChangeSet cut_held();
  void invalidate(const std::vector<RelPath>& changed);

  const MountConfig config_;
  FileDescriptor device_;
  std::optional<dev_t> mounted_as_;  // its device number
  std::unique_ptr<Workspace> workspace_;
  NodeTable nodes_;
  ChangeLog changes_;
  SessionState state_;
  Backings backings_;
  Gate gate_;
  Notifier notifier_;
  Operations operations_;
  PathFiles files_;
  Channel channel_;
  Dispatcher dispatcher_;
  fuse_session* session_ = nullptr;
  std::unique_ptr<RequestLoop> loop_;
  std::promise<void> ready_;  // the handshake with the kernel is done
  bool finished_ = false;     // unmounted or abandoned
};

Operations::Config operations_config(const MountConfig& config) {
  Operations::Config operations;
  operations.mount_point = config.mount_point;
  operations.owner_uid = config.owner_uid;
  operations.owner_gid = config.owner_gid;
  operations.root_mode = config.root_mode & 07777;
  operations.created_at = config.created_at;
  operations.symlink_host_roots = config.symlink_host_roots;
  operations.on_denial = config.on_denial;
  return operations;
}

Unexpected in_use() {
  return fail(Code::kBusy, "files or working directories in the session are in use; close them or use force");
}

MountedSession::MountedSession(MountConfig config, FileDescriptor device,
                               std::unique_ptr<Workspace> workspace, NodeTable nodes, ChangeLog changes,
                               SessionState state, bool adopt)
    : config_(std::move(config)),
      device_(std::move(device)),
      mounted_as_(adopt ? served_through(device_.get()) : mounted_at(config_.mount_point)),
      workspace_(std::move(workspace)),
      nodes_(std::move(nodes)),
      changes_(std::move(changes)),
      state_(std::move(state)),
      backings_(nodes_, state_),
      operations_(operations_config(config_), *workspace_, nodes_, changes_, state_, backings_, notifier_),
      files_(operations_, *workspace_, gate_, notifier_, state_),
      channel_(
          device_.get(), state_, config_.passthrough == Passthrough::kAuto, adopt,
          [this] {
            backings_.start(device_.get(), state_.passthrough());
            ready_.set_value();
          },
          [this] { loop_->add_thread(); }),
      dispatcher_{operations_, gate_, state_, channel_} {
  channel_.set_syncs_at_once(operations_.syncs_at_once());
  operations_.set_metadata(config_.metadata);
  operations_.orphans().start(adopt);
  files_.remove_leftovers();
  if (adopt) settle_after_take_over();
}

/// The counts of open files follow from the table of open files; backing ids of files that are open stay in
/// use.
void MountedSession::settle_after_take_over() {
  backings_.start(device_.get(), state_.passthrough());
  nodes_.clear_open_counts();
  fault_point("takeover.counts");
  for (const auto& file : state_.all_files()) nodes_.opened(file.node, file.flags);
  backings_.settle();
  operations_.orphans().drop_unless([this](NodeId id) { return nodes_.open_state(id).opens > 0; });
}

Result<void> MountedSession::run() {
  char program[] = "okcvm";
  char* arguments[] = {program, nullptr};
  fuse_args args = FUSE_ARGS_INIT(1, arguments);
  session_ = fuse_session_new(&args, &fuse_callbacks(), sizeof(fuse_lowlevel_ops), &dispatcher_);
  fuse_opt_free_args(&args);  // libfuse has made a copy of them its own
  // libfuse 3.14 takes one of the process's PTHREAD_KEYS_MAX (1,024) thread-specific keys for each.
  if (!session_)
    return fail(Code::kQuotaExceeded,
                "no more sessions can be mounted by one daemon (about 1,000 can): unmount or delete some");
  constexpr fuse_custom_io kIo{write_channel, read_nothing, nullptr, nullptr};
  FileDescriptor device(::fcntl(device_.get(), F_DUPFD_CLOEXEC, 0));  // libfuse closes its own
  if (!device || fuse_session_custom_io(session_, &kIo, device.get()) != 0) {
    fuse_session_destroy(session_);
    session_ = nullptr;
    return fail(Code::kInternal, "libfuse refused the device");
  }
  device.release();
  notifier_.start(device_.get(), config_.mount_point, state_);
  loop_ = std::make_unique<RequestLoop>(session_, channel_);
  if (!loop_->add_thread()) return fail(Code::kInternal, "no thread could be started for the mount");
  if (ready_.get_future().wait_for(kHandshakePatience) != std::future_status::ready)
    return fail(Code::kInternal, "the kernel did not begin to talk to the mount");
  return {};
}

Result<std::unique_ptr<SessionMount>> MountedSession::start(MountConfig config, FileDescriptor device,
                                                            bool adopt) {
  std::error_code error;
  std::filesystem::create_directories(config.runtime_dir, error);
  if (error) return fail_errno(error.value(), "cannot make the run-time directory");

  Workspace::Config folders;
  folders.folder = config.workspace;
  folders.owner_uid = config.owner_uid;
  folders.owner_gid = config.owner_gid;
  folders.workdir = std::move(config.workdir);
  folders.use_handles = config.file_handles;
  auto workspace = Workspace::open(std::move(folders));
  if (!workspace) return fail(workspace.error());
  for (auto& skill : config.skills)
    if (auto loaded = (*workspace)->load_skill(skill.name, std::move(skill.directory)); !loaded)
      return fail(loaded.error());

  // The former daemon may have died after it unmounted and before it could say so.
  if (adopt && !mounted_at(config.mount_point)) return fail_errno(EUCLEAN, "it is not mounted any more");
  if (adopt && !(*workspace)->finds_inodes_again())
    return fail_errno(EUCLEAN, "its files are on a file system that cannot find them again (file handles)");
  const auto state_of = [&config](StateFile purpose) {
    return state_file(config.runtime_dir, config.id, purpose);
  };
  auto state = SessionState::open(state_of(StateFile::kState), state_of(StateFile::kGoing), adopt);
  if (!state) return fail(state.error());
  // Calls that the last daemon had read would wait for ever, and with them who wants the locks they hold.
  if (adopt && !state->can_resend())
    return fail_errno(EUCLEAN, "the kernel cannot send again what was not answered (Linux 6.9 can)");
  auto nodes = NodeTable::open(state_of(StateFile::kNodes), adopt);
  if (!nodes) return fail(nodes.error());
  ChangeLog::Config log;
  log.live = state_of(StateFile::kChanges);
  log.resting = config.workspace.parent_path().parent_path() / "changes" / config.id.text();
  log.enabled = config.record_changes;
  log.adopt = adopt;
  log.workspace_exists = (*workspace)->is_materialized() && !config.is_as_snapshotted;
  auto changes = ChangeLog::open(std::move(log));
  if (!changes) return fail(changes.error());

  if (!adopt) {
    auto mounted = mount_device(config.mount_point);
    if (!mounted) return fail(mounted.error());
    device = std::move(*mounted);
  }
  std::unique_ptr<MountedSession> session(new MountedSession(std::move(config), std::move(device),
                                                             std::move(*workspace), std::move(*nodes),
                                                             std::move(*changes), std::move(*state), adopt));
  if (auto running = session->run(); !running) return fail(running.error());
  // The metadata, the skills and the workdir may be others than those of the former daemon.
  if (adopt)
    for (const NodeId id : {kMetadataNode, node_of(Zone::kSkills), kRootNode}) session->notifier_.inode(id);
  // Nobody knows any more when the listings that the kernel keeps of them were made.
  if (adopt)
    for (const Node& node : session->nodes_.descendants(kRootNode, [](const Node& known) {
           return known.is_directory() && rule_of(known.zone).changes_underneath;
         }))
      session->notifier_.inode(node.id);
  session->notifier_.drain();
  if (adopt && session->state_.has_untold()) session->tell_everything();
  return session;
}

// -- Ending
// ---------------------------------------------------------------------------------------------------

void MountedSession::end_loop() {
  // While requests are still answered: a notice may wait for one.
  if (!notifier_.drain_for(kTellingPatience)) state_.set_untold();
  if (session_) fuse_session_exit(session_);
  channel_.stop();
  notifier_.cut();
  if (loop_) loop_->join();
  notifier_.stop();
  if (session_) {
    fuse_session_destroy(session_);
    session_ = nullptr;
  }
}

Result<void> MountedSession::unmount(bool force) {
  if (finished_) return {};
  // Not only those that the kernel would refuse for: a container has a mount of its own.
  if (!force && !all_closed_within(kClosingPatience)) return in_use();
  const auto there = mounted_at(config_.mount_point);
  if (!force && there && mounted_as_ && there != mounted_as_ && is_mounted())
    return fail(Code::kBusy, "something else is mounted on the session: unmount that first, or use force");
  if (const int error = unmount_at(config_.mount_point, force)) {
    if (error == EBUSY) return in_use();
    return fail_errno(error, "cannot unmount the session");
  }
  finished_ = true;
  fault_point("mount.gone");
  // Files that are still open and not passed through need us until they are closed, or this object goes.
  if (state_.passthrough() || state_.open_count() == 0) {
    end_loop();
    // An upload that goes on keeps this object: nobody is to wait for its answers until then.
    if (const FileDescriptor nothing(::open("/dev/null", O_RDWR | O_CLOEXEC)); nothing)
      ::dup3(nothing.get(), device_.get(), O_CLOEXEC);
  }
  ::rmdir(config_.mount_point.c_str());
  if (workspace_->is_materialized()) changes_.rest();
  fault_point("mount.rested");
  forget_mount(config_.runtime_dir, config_.id);
  return {};
}

bool MountedSession::all_closed_within(std::chrono::milliseconds time) const {
  const auto end = std::chrono::steady_clock::now() + time;
  while (state_.open_count() > 0 && is_mounted()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

void MountedSession::abandon() {
  if (finished_) return;
  finished_ = true;
  end_loop();
}

MountedSession::~MountedSession() {
  [[maybe_unused]] auto unmounted = unmount(true);
  end_loop();
}

// -- Changes and holds
// ----------------------------------------------------------------------------------------

/// Where the kernel keeps the pages of open files itself, it has not written yet what was stored through
/// mappings, and does when it is told to forget them. Only while requests pass: it waits for a truncate.
void MountedSession::fetch_mapped_stores() {
  bool has_asked = false;
  for (const NodeId id : nodes_.open_for_writing()) {
    if (!nodes_.open_state(id).may_hide_stores()) continue;
    notifier_.inode(id);
    has_asked = true;
  }
  if (has_asked) notifier_.drain_while_told(kWritingPatience);
}

ChangeSet MountedSession::cut_held() {
  std::vector<RelPath> in_flight = operations_.written_now();
  ChangeSet changes = changes_.cut();
  for (const auto& path : in_flight) changes_.record(ChangeKind::kContent, path);
  changes.in_flight = std::move(in_flight);
  return changes;
}

ChangeSet MountedSession::cut_changes() {
  fetch_mapped_stores();
  const Gate::Closing closing(gate_);
  return cut_held();
}

void MountedSession::mark_changed(const std::vector<RelPath>& paths) {
  for (const auto& path : paths) changes_.record(ChangeKind::kContent, path);
}

class MountedSession::SessionHold final : public SessionMount::Hold {
 public:
  explicit SessionHold(MountedSession& session) : session_(session), untold_(session.state_) {
    session_.gate_.lock();
  }
  ~SessionHold() override {
    session_.gate_.unlock();
    session_.notifier_.drain();  // only now: a notice may wait for a request that was held back
    if (replaces_) session_.forget_names();
  }
  ChangeSet cut_changes() override { return session_.cut_held(); }
  void will_replace(const std::vector<RelPath>& paths) override {
    replaces_ = true;
    session_.operations_.names_will_go(paths);
    for (const auto& path : paths) session_.state_.note_going(path);
  }
  void invalidate(const std::vector<RelPath>& changed) override { session_.invalidate(changed); }

 private:
  MountedSession& session_;
  const SessionState::Untold untold_;
  bool replaces_ = false;
};

std::unique_ptr<SessionMount::Hold> MountedSession::hold() {
  fetch_mapped_stores();
  return std::make_unique<SessionHold>(*this);
}

/// After a daemon died while it changed the workspace: nobody knows of what the kernel was told and what not.
/// Every name in a directory that the kernel knows may be one that it believes absent, and every one it knows
/// may be gone.
void MountedSession::tell_everything() {
  std::vector<RelPath> paths = state_.going();
  const bool knows_all_going = state_.knows_all_going();
  std::vector<NodeId> directories;
  for (const auto& rule : kZoneRules)
    if (rule.snapshotted) directories.push_back(node_of(rule.zone));
  for (const Node& node : nodes_.descendants(kRootNode, [](const Node&) { return true; })) {
    if (!rule_of(node.zone).snapshotted) continue;
    // The kernel may still reach it by a name that nobody knows any more: then it is to hear ESTALE, and look
    // again.
    if (node.dead && !knows_all_going) nodes_.drop_last_status(node.id);
    if (auto path = tell_of(node)) paths.push_back(std::move(*path));
    if (node.is_directory()) directories.push_back(node.id);
  }
  for (const NodeId id : directories) add_names_in(id, paths);
  const auto late = notifier_.times_late();
  hold()->invalidate(paths);
  for (const NodeId id : directories)  // where they are by now
    if (const auto node = nodes_.find(id))
      if (const auto path = operations_.path_of(*node)) notifier_.look_up(*path);
  forget_names();
  if (notifier_.times_late() == late) state_.set_all_told();
}

/// Tells the kernel of an inode that may have changed or gone. Answers the name that it may know it by, where
/// one is known here.
std::optional<RelPath> MountedSession::tell_of(const Node& node) {
  if (S_ISREG(node.type) || node.dead) notifier_.inode(node.id);  // another of its names may be gone
  if (node.dead) return std::nullopt;                             // its last one is among those that went
  if (operations_.orphans().keeps(node.id)) operations_.name_may_go(node.id, {});
  // The table has no long names. If it is gone, the kernel is to ask for it, hear that (ESTALE), and look
  // again; nothing unused may keep it.
  if (node.name.empty()) {
    backings_.drop_unused(node.id);
    notifier_.inode(node.id);
  }
  // By the directory it is known in: it may be gone itself.
  auto parent = nodes_.find(node.parent);
  auto name = Name::parse(node.name);
  if (!parent || !name) return std::nullopt;
  auto directory = operations_.path_of(*parent);
  if (!directory) return std::nullopt;
  return *directory / *name;
}

/// Adds what is in a directory now. If it is gone, its own name is among the paths.
void MountedSession::add_names_in(NodeId id, std::vector<RelPath>& paths) {
  auto node = nodes_.find(id);
  if (!node) return;
  auto directory = operations_.path_of(*node);
  if (!directory) return;
  [[maybe_unused]] auto listed = operations_.list(id, 0, [&](const ListedName& row) {
    if (auto name = Name::parse(row.name)) paths.push_back(*directory / *name);
    return true;
  });
}

/// Once the kernel was told: were they forgotten before, none could tell it after a death in between.
void MountedSession::forget_names() {
  {
    const Gate::Closing closing(gate_);
    operations_.names_went();
  }
  notifier_.drain();
}

/// Called under a hold. The notices are told when it ends, before its destructor returns.
void MountedSession::invalidate(const std::vector<RelPath>& changed) {
  nodes_.distrust_all();
  operations_.directories().drop_all();
  files_.tell_kernel(changed);
}

// -- What a session shows
// -------------------------------------------------------------------------------------

Result<void> MountedSession::load_skill(Skill skill) {
  const std::string name = skill.name.text();
  if (auto loaded = workspace_->load_skill(skill.name, std::move(skill.directory)); !loaded) return loaded;
  notifier_.entry(node_of(Zone::kSkills), name);
  notifier_.inode(node_of(Zone::kSkills));
  notifier_.drain();
  return {};
}

Result<void> MountedSession::unload_skill(const Name& name) {
  if (auto unloaded = workspace_->unload_skill(name); !unloaded) return fail(unloaded.error());
  notifier_.entry(node_of(Zone::kSkills), name.text());
  notifier_.inode(node_of(Zone::kSkills));
  notifier_.drain();
  return {};
}

void MountedSession::set_metadata(std::string metadata) {
  operations_.set_metadata(std::move(metadata));
  notifier_.inode(kMetadataNode);
  notifier_.drain();
}

MountStatistics MountedSession::statistics() const {
  MountStatistics statistics;
  state_.fill(statistics);
  statistics.survives_daemon &= workspace_->finds_inodes_again();
  statistics.nodes = nodes_.size();
  statistics.open_directories = operations_.directories().open_count();
  statistics.last_used = channel_.last_used();
  return statistics;
}

}  // namespace

Result<std::unique_ptr<SessionMount>> SessionMount::mount(MountConfig config) {
  ::umask(0);  // the kernel has applied the caller's; backing files get exactly what was asked for
  return MountedSession::start(std::move(config), FileDescriptor(), false);
}

Result<std::unique_ptr<SessionMount>> SessionMount::take_over(MountConfig config, FileDescriptor device) {
  ::umask(0);
  auto session = MountedSession::start(std::move(config), std::move(device), true);
  if (!session && session.error().errno_value == EUCLEAN) {
    Error error = session.error();
    error.code = Code::kCorrupt;
    return fail(std::move(error));
  }
  return session;
}

}  // namespace okcvm::fusefs
