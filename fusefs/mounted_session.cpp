// A mount's beginning, its end, and what it shows.

#include "fusefs/mounted_session.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <mutex>
#include <thread>

#include "fusefs/mount_point.h"
#include "fusefs/stale_mounts.h"
#include "fusefs/state_files.h"
#include "policy/fault.h"

namespace okcvm::fusefs {
namespace {

constexpr std::chrono::seconds kHandshakeTimeout{10};
constexpr std::chrono::milliseconds kClosingTimeout{300};
constexpr std::chrono::milliseconds kForcedClosingTimeout{100};  // what was just closed is on its way to us
constexpr std::chrono::seconds kEndingTimeout{10};               // for requests that were begun
constexpr std::chrono::seconds kTellingTimeout{2};               // programs are held up meanwhile
constexpr std::chrono::seconds kResendingTimeout{1};

/// libfuse insists on one; RequestLoop reads the channel by itself.
ssize_t read_nothing(int, void*, std::size_t, void*) {
  errno = ENOSYS;
  return -1;
}

ssize_t write_channel(int, iovec* parts, int count, void* user_data) {
  auto& channel = static_cast<Dispatcher*>(user_data)->channel;
  return channel.write({parts, static_cast<std::size_t>(count)});
}

Operations::Config operations_config(const MountConfig& config, Start start) {
  Operations::Config operations;
  operations.mount_points = {config.mount_point};
  const auto real = real_mount_root(config.mount_point.parent_path()) / config.mount_point.filename();
  if (real != config.mount_point) operations.mount_points.push_back(real);
  operations.owner_uid = config.owner_uid;
  operations.owner_gid = config.owner_gid;
  operations.root_mode = config.root_mode & 07777;
  operations.created_at = config.created_at;
  operations.symlink_host_roots = config.symlink_host_roots;
  operations.on_denial = config.on_denial;
  operations.expects_workdir = config.expects_workdir;
  operations.start = start;
  return operations;
}

Result<std::unique_ptr<Workspace>> open_workspace(MountConfig& config) {
  Workspace::Config folders;
  folders.folder = config.workspace;
  folders.owner_uid = config.owner_uid;
  folders.owner_gid = config.owner_gid;
  folders.created_at = config.created_at;
  folders.workdir = std::move(config.workdir);
  folders.use_handles = config.file_handles;
  folders.skill_numbers = state_file(config.runtime_dir, config.id, StateFile::kSkills);
  auto workspace = Workspace::open(std::move(folders));
  if (!workspace) return workspace;
  for (auto& skill : config.skills)
    if (auto loaded = (*workspace)->load_skill(skill.name, std::move(skill.directory)); !loaded)
      return fail(loaded.error());
  return workspace;
}

/// What the table of nodes tells of a mount that was lost with its daemon.
std::unordered_set<std::uint64_t> left_writers(const std::filesystem::path& nodes) {
  if (::access(nodes.c_str(), F_OK) != 0) return {};
  const auto left = NodeTable::open(nodes, Start::kTakeOver);
  return left ? (*left)->written_past_us() : std::unordered_set<std::uint64_t>();
}

/// Whether the kernel has let go of the mount: nothing has it any more, or somebody aborted it.
bool is_disconnected(int device) {
  pollfd state{device, 0, 0};
  return ::poll(&state, 1, 0) == 1 && (state.revents & POLLERR);
}

/// `corrupt` if programs could not go on with what the former daemon left; `not_found` if none would.
Result<void> check_take_over(const MountConfig& config, int device, const Workspace& workspace,
                             const SessionState& state) {
  const auto there = mounted_at(config.mount_point);
  if (!there) {
    if (detach_served_through(device, config.mount_point.filename()))
      return fail(Code::kCorrupt, "it was mounted below another mount root");
    return fail(Code::kCorrupt, "it is not mounted any more, though programs have it open");
  }
  if (served_through(device) != there && serves_others_only(device, config.mount_point.filename()))
    return fail(Code::kCorrupt, "the device that was kept for it serves another session");
  if (!workspace.finds_inodes_again())
    return fail(Code::kCorrupt, "its files are on a file system that cannot find them again (file handles)");
  // Calls that it had read would wait for ever, and with them who wants the locks they hold.
  if (!state.can_resend())
    return fail(Code::kCorrupt, "the kernel cannot send again what was not answered (Linux 6.9 can)");
  return {};
}

/// It is there already, unless somebody took it away: then nobody else is to write in it either, whatever the
/// process's umask is.
Result<void> make_runtime_folder(const std::filesystem::path& folder) {
  if (::mkdir(folder.c_str(), 0700) == 0 || errno == EEXIST) return {};
  const bool is_made = errno == ENOENT && ::mkdir(folder.parent_path().c_str(), 0755) == 0 &&
                       ::mkdir(folder.c_str(), 0700) == 0;
  if (is_made) return {};
  return fail_errno(errno, "cannot make the run-time directory");
}

Unexpected in_use() {
  return fail(
      Code::kBusy,
      "files or working directories in the session are in use; close them or use force (okcvm: --force)");
}

Unexpected in_use_elsewhere() {
  return fail(
      Code::kBusy,
      "something of the session is mounted at another place, as in a container: end that, or use force "
      "(okcvm: --force)");
}

}  // namespace

MountedSession::MountedSession(MountConfig config, FileDescriptor device,
                               std::unique_ptr<Workspace> workspace, std::unique_ptr<NodeTable> nodes,
                               std::unique_ptr<ChangeLog> changes, std::unique_ptr<SessionState> state,
                               Start start)
    : config_(std::move(config)),
      device_(std::move(device)),
      mounted_as_(start == Start::kTakeOver ? served_through(device_.get())
                                            : mounted_at(config_.mount_point)),
      workspace_(std::move(workspace)),
      nodes_(std::move(nodes)),
      changes_(std::move(changes)),
      state_(std::move(state)),
      backings_(*nodes_, *state_),
      operations_(operations_config(config_, start), *workspace_, *nodes_, *changes_, *state_, backings_,
                  notifier_),
      files_(operations_, *workspace_, gates_, notifier_, *state_),
      channel_(
          device_.get(), *state_, config_.passthrough, start,
          [this] {
            backings_.start(device_.get(), state_->passthrough());
            ready_.set_value();
          },
          [this] { loop_->add_thread(); }),
      dispatcher_{operations_, gates_, *state_, channel_} {
  operations_.set_metadata(config_.metadata);
  operations_.orphans().start(start);
  files_.remove_leftovers();
  if (start == Start::kTakeOver) settle_after_take_over();
}

/// The counts of open files follow from the table of open files; backing ids of files that are open stay in
/// use.
void MountedSession::settle_after_take_over() {
  backings_.start(device_.get(), state_->passthrough());
  nodes_->clear_open_counts();
  fault_point("takeover.counts");
  for (const auto& file : state_->all_files()) nodes_->opened(file.node, file.flags);
  backings_.settle();
  operations_.orphans().drop_unless([this](NodeId id) { return nodes_->open_state(id).opens > 0; });
  for (const NodeId id : nodes_->unreferenced()) operations_.forget(id, 0);
  // What a dead daemon was taking away may be gone, and another file have its inode number.
  if (state_->has_untold() || state_->has_unclaimed()) nodes_->distrust_all();
  if (!state_->has_untold()) return;
  operations_.take_in_all();
  if (state_->knows_all_going()) operations_.recall_going();
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
  notifier_.start(device_.get(), config_.mount_point, *state_);
  loop_ = std::make_unique<RequestLoop>(session_, channel_);
  if (!loop_->add_thread()) return fail(Code::kInternal, "no thread could be started for the mount");
  if (ready_.get_future().wait_for(kHandshakeTimeout) != std::future_status::ready)
    return fail(Code::kInternal, "the kernel did not begin to talk to the mount");
  return {};
}

Result<std::unique_ptr<SessionMount>> MountedSession::start(MountConfig config, FileDescriptor device,
                                                            Start start) {
  // The former daemon may have died after it unmounted and before it could say so: then nobody had it.
  if (start == Start::kTakeOver && is_disconnected(device.get()) && !mounted_at(config.mount_point) &&
      !detach_served_through(device.get(), config.mount_point.filename()))
    return fail(Code::kNotFound, "it is not mounted any more");
  if (auto made = make_runtime_folder(config.runtime_dir); !made) return fail(made.error());
  const auto state_of = [&config](StateFile purpose) {
    return state_file(config.runtime_dir, config.id, purpose);
  };
  if (config.workdir || start == Start::kAnew)
    note_workdir(state_of(StateFile::kWorkdir), config.workdir.get());
  if (start == Start::kAnew) ::unlink(state_of(StateFile::kSkills).c_str());
  auto workspace = open_workspace(config);
  if (!workspace) return fail(workspace.error());
  auto state = SessionState::open(state_of(StateFile::kState), state_of(StateFile::kGoing), start);
  if (!state) return fail(state.error());
  if (start == Start::kTakeOver)
    if (auto usable = check_take_over(config, device.get(), **workspace, **state); !usable)
      return fail(usable.error());
  auto writers = kept_writers(state_of(StateFile::kWriters));
  if (start == Start::kAnew) {
    writers.merge(left_writers(state_of(StateFile::kNodes)));
    keep_writers(state_of(StateFile::kWriters), writers);
  }
  auto nodes = NodeTable::open(state_of(StateFile::kNodes), start);
  if (!nodes) return fail(nodes.error());
  (*nodes)->await_writers(std::move(writers));
  ChangeLog::Config log;
  log.live = state_of(StateFile::kChanges);
  log.resting = config.workspace.parent_path().parent_path() / "changes" / config.id.text();
  log.enabled = config.record_changes;
  log.start = start;
  log.workspace_exists = (*workspace)->is_materialized() && !config.is_as_snapshotted;
  auto changes = ChangeLog::open(std::move(log));
  if (!changes) return fail(changes.error());

  if (start == Start::kAnew) {
    auto mounted = mount_device(config.mount_point);
    if (!mounted) return fail(mounted.error());
    device = std::move(*mounted);
  }
  std::unique_ptr<MountedSession> session(new MountedSession(std::move(config), std::move(device),
                                                             std::move(*workspace), std::move(*nodes),
                                                             std::move(*changes), std::move(*state), start));
  if (auto running = session->run(); !running) {
    if (start == Start::kTakeOver) session->abandon();  // to be tried again
    return fail(running.error());
  }
  if (start == Start::kTakeOver) session->tell_after_take_over();
  return session;
}

void MountedSession::tell_after_take_over() {
  // Until the kernel has the root's attributes nobody may enter it, and while it asks for them a notice of
  // the root has it drop the answer: it is to ask first.
  notifier_.look_up(RelPath(), 0, {});
  // The metadata, the skills and the workdir may be others than those of the former daemon.
  for (const NodeId id : {kMetadataNode, node_of(Zone::kSkills), kRootNode}) notifier_.inode(id);
  notifier_.expire(kRootNode, std::string(rule_of(Zone::kWorkdir).name));
  // Nobody knows any more when the listings that the kernel keeps of them were made.
  for (const Node& node : nodes_->descendants(kRootNode, [](const Node& known) {
         return known.is_directory() && rule_of(known.zone).changes_underneath;
       }))
    notifier_.inode(node.id);
  // Nor which host roots the texts of links were judged by.
  for (const NodeId link : nodes_->bound_links_from(kRootNode)) notifier_.inode(link);
  notifier_.drain();
  // What a dead daemon had begun comes again, but not if its program was killed meanwhile: then nobody hears
  // of it. (Or it was answered already.)
  if (state_->has_unclaimed()) channel_.wait_for_resent(kResendingTimeout);
  const bool has_lost = state_->has_unclaimed();
  if (state_->has_untold() || has_lost)
    tell_everything();
  else
    operations_.have_misplaced_found();
  if (has_lost) state_->forget_unclaimed();
  operations_.forget_unknown();
}

// -- Ending

bool MountedSession::end_loop(std::chrono::milliseconds timeout) {
  // While requests are still answered: a notice may wait for one.
  if (!notifier_.drain_for(kTellingTimeout)) state_->set_untold();
  if (session_) fuse_session_exit(session_);
  channel_.stop();
  notifier_.cut();
  is_held_up_ = loop_ && !loop_->join_within(timeout);
  if (is_held_up_) return false;
  notifier_.stop();
  if (session_) {
    fuse_session_destroy(session_);
    session_ = nullptr;
  }
  return true;
}

bool MountedSession::is_in_place() const {
  return mounted_at(config_.mount_point).has_value();
}

Result<void> MountedSession::unmount(bool force) {
  if (phase_ == Phase::kUnmounted) return put_away();
  if (phase_ != Phase::kServing) return {};
  // Not only those that the kernel would refuse for: a container has a mount of its own.
  if (!all_closed_within(force ? kForcedClosingTimeout : kClosingTimeout) && !force) return in_use();
  const auto there = mounted_at(config_.mount_point);
  if (!force && there && mounted_as_ && there != mounted_as_ && is_mounted())
    return fail(
        Code::kBusy,
        "something else is mounted on the session: unmount that first, or use force (okcvm: --force)");
  if (force && is_mounted()) fetch_mapped_stores(Stores::kAll);
  const auto standing = force || !there ? std::nullopt : standing_at(config_.mount_point);
  if (standing && mounted_elsewhere(*there, standing) == Elsewhere::kSomewhere) return in_use_elsewhere();
  FileDescriptor held = force || !there ? FileDescriptor() : hold_mount(config_.mount_point);
  do {  // also where somebody bound it to its own place
    const int error = unmount_at(config_.mount_point, force);
    if (error == EBUSY) return in_use();
    if (error) return fail_errno(error, "cannot unmount the session");
  } while (!force && there && mounted_at(config_.mount_point) == there);
  // Mounts that follow the host's went with it; a container has one of its own, or made it meanwhile.
  if (held && mounted_elsewhere(*there, standing) != Elsewhere::kNowhere &&
      put_back(held, config_.mount_point))
    return in_use_elsewhere();
  held = {};  // the last reference goes while what the kernel still has to write is served
  phase_ = Phase::kUnmounted;
  fault_point("mount.gone");
  ::rmdir(config_.mount_point.c_str());
  return put_away();
}

/// What is left to be done once the mount is gone.
Result<void> MountedSession::put_away() {
  const auto written =
      state_->passthrough() ? nodes_->written_past_us() : std::unordered_set<std::uint64_t>();
  // Files that are still open and not passed through need us until they are closed, or this object goes.
  if (is_held_up_ || state_->passthrough() || state_->open_count() == 0) {
    if (!end_loop(kEndingTimeout))
      return fail(Code::kBusy,
                  "a program waits in it for a file system that does not answer (a skill's, or the "
                  "workdir's): try again once it does");
    // An upload that goes on keeps this object: nobody is to wait for its answers until then.
    if (const FileDescriptor nothing(::open("/dev/null", O_RDWR | O_CLOEXEC)); nothing)
      ::dup3(nothing.get(), device_.get(), O_CLOEXEC);
  }
  phase_ = Phase::kPutAway;
  if (workspace_->is_materialized()) changes_->rest([this] { return workspace_->sync(); });
  fault_point("mount.rested");
  leave_only_writers(config_.runtime_dir, config_.id, written);
  return {};
}

bool MountedSession::all_closed_within(std::chrono::milliseconds time) const {
  const auto end = std::chrono::steady_clock::now() + time;
  while (state_->open_count() > 0 && is_mounted()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

void MountedSession::abandon() {
  if (phase_ != Phase::kServing) return;
  phase_ = Phase::kAbandoned;
  end_loop(kTellingTimeout);  // what is not answered then comes to the next daemon
}

MountedSession::~MountedSession() {
  [[maybe_unused]] auto unmounted = unmount(true);
  if (end_loop(kEndingTimeout)) return;
  loop_->join();
  end_loop({});
}

// -- What a session shows

Result<void> MountedSession::load_skill(Skill skill) {
  if (auto left = leave_descriptors(skill.directory.get()); !left) return left;
  auto loaded = workspace_->load_skill(skill.name, std::move(skill.directory));
  if (loaded) tell_of_skill(skill.name);
  return loaded;
}

Result<bool> MountedSession::renew_skill(Skill skill) {
  const auto former = workspace_->skill(skill.name.text());
  auto renewed = workspace_->renew_skill(skill.name, std::move(skill.directory));
  if (!renewed || !*renewed) return renewed;
  tell_of_skill(skill.name);
  if (former && !nodes_->knows_any_in(*former)) workspace_->release(*former);
  return renewed;
}

Result<void> MountedSession::unload_skill(const Name& name) {
  const auto unloaded = workspace_->unload_skill(name);
  if (!unloaded) return fail(unloaded.error());
  tell_of_skill(name);
  if (!nodes_->knows_any_in(*unloaded)) workspace_->release(*unloaded);
  return {};
}

void MountedSession::tell_of_skill(const Name& name) {
  notifier_.entry(node_of(Zone::kSkills), name.text());
  notifier_.inode(node_of(Zone::kSkills));
  notifier_.drain();
}

void MountedSession::set_metadata(std::string metadata) {
  operations_.set_metadata(std::move(metadata));
  notifier_.inode(kMetadataNode);
  notifier_.drain();
}

MountStatistics MountedSession::statistics() const {
  MountStatistics statistics;
  state_->fill(statistics);
  statistics.survives_daemon &= workspace_->finds_inodes_again();
  statistics.nodes = nodes_->size();
  statistics.open_directories = operations_.directories().open_count();
  statistics.last_used = channel_.last_used();
  return statistics;
}

Result<std::unique_ptr<SessionMount>> SessionMount::mount(MountConfig config) {
  ::umask(0);  // the kernel has applied the caller's; backing files get exactly what was asked for
  return MountedSession::start(std::move(config), FileDescriptor(), Start::kAnew);
}

Result<std::unique_ptr<SessionMount>> SessionMount::take_over(MountConfig config, FileDescriptor device) {
  ::umask(0);
  return MountedSession::start(std::move(config), std::move(device), Start::kTakeOver);
}

}  // namespace okcvm::fusefs
