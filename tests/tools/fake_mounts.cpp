#include "tests/tools/fake_mounts.h"

#include <fcntl.h>
#include <sqlite3.h>

#include <atomic>

#include "fusefs/session_mount.h"
#include "tests/support/file_io.h"

namespace okcvm::test {
namespace {

using fusefs::MountConfig;
using fusefs::SessionMount;

class FakeMount final : public SessionMount {
 public:
  FakeMount(FakeMounts& mounts, const MountConfig& config) : mounts_(mounts), id_(config.id.text()) {
    FakeMounts::Shown shown;
    for (const auto& skill : config.skills) shown.skills.insert(skill.name.text());
    shown.metadata = config.metadata;
    mounts_.show(id_, shown);
  }
  ~FakeMount() override { end(); }

  Result<void> unmount(bool /*force*/) override {
    mounts_.at_unmount();
    end();
    return {};
  }
  bool is_mounted() const override { return is_mounted_; }
  bool is_in_place() const override { return is_mounted_; }
  Result<void> load_skill(fusefs::Skill skill) override {
    auto shown = mounts_.shown(id_);
    if (!shown->skills.insert(skill.name.text()).second) return fail(Code::kAlreadyExists, "it is loaded");
    mounts_.show(id_, shown);
    return {};
  }
  bool shows_skill(const Name& name) const override {
    return mounts_.shown(id_)->skills.contains(name.text());
  }
  Result<bool> renew_skill(fusefs::Skill /*skill*/) override { return false; }
  Result<void> unload_skill(const Name& name) override {
    auto shown = mounts_.shown(id_);
    if (shown->skills.erase(name.text()) == 0) return fail(Code::kNotFound, "it is not loaded");
    mounts_.show(id_, shown);
    return {};
  }
  void set_metadata(std::string metadata) override {
    auto shown = mounts_.shown(id_);
    shown->metadata = std::move(metadata);
    mounts_.show(id_, shown);
  }
  fusefs::MountStatistics statistics() const override {
    mounts_.at_statistics();
    return {};
  }

  void abandon() override {}
  bool is_held_up() const override { return false; }
  int device() const override { return -1; }
  fusefs::Files& files() override { throw std::logic_error("there are no files"); }
  ChangeSet cut_changes() override { return {}; }
  void retire_changes(const ChangeSet& /*changes*/) override {}
  void changes_count_from(const std::string& /*state*/) override {}
  void forget_unknown() override {}
  void mark_changed(const std::vector<RelPath>& /*paths*/) override {}
  std::unique_ptr<Hold> hold() override { return nullptr; }

 private:
  void end() {
    if (is_mounted_.exchange(false)) mounts_.show(id_, std::nullopt);
  }

  FakeMounts& mounts_;
  const std::string id_;
  std::atomic<bool> is_mounted_{true};
};

}  // namespace

std::optional<FakeMounts::Shown> FakeMounts::shown(const std::string& id) const {
  const MutexLock lock(mutex_);
  const auto found = shown_.find(id);
  return found == shown_.end() ? std::nullopt : std::optional(found->second);
}

void FakeMounts::show(const std::string& id, std::optional<Shown> shown) {
  const MutexLock lock(mutex_);
  if (shown)
    shown_[id] = std::move(*shown);
  else
    shown_.erase(id);
}

daemon::Backends FakeMounts::backends() {
  daemon::Backends backends;
  backends.mount = [this](MountConfig config) -> Result<std::unique_ptr<SessionMount>> {
    if (auto mounted = at_mount(); !mounted) return fail(mounted.error());
    return std::make_unique<FakeMount>(*this, config);
  };
  backends.take_over = [this](MountConfig config,
                              FileDescriptor /*device*/) -> Result<std::unique_ptr<SessionMount>> {
    if (auto taken = at_take_over(); !taken) return fail(taken.error());
    return std::make_unique<FakeMount>(*this, config);
  };
  backends.detach_stale = [](const auto&...) { return std::vector<std::string>(); };
  return backends;
}

void SessionsOnFakes::SetUp() {
  char name[] = "/tmp/okcvm-sessions-XXXXXX";  // workdirs may be below /tmp, though not everywhere
  top_ = ::mkdtemp(name);
  for (const char* folder : {"state", "skills", "projects"}) std::filesystem::create_directory(top_ / folder);
  start();
}
void SessionsOnFakes::TearDown() {
  sessions_.reset();
  std::filesystem::remove_all(top_);
}

void SessionsOnFakes::start_with_kept(const std::string& id) {
  std::map<std::string, FileDescriptor> kept;
  kept.emplace(id, open_file("/dev/null", O_RDWR));
  start(std::move(kept));
}

void SessionsOnFakes::start(std::map<std::string, FileDescriptor> kept_devices) {
  sessions_.reset();
  auto registry = daemon::Registry::open(top_ / "state/sessions.db", false);
  ASSERT_TRUE(registry) << registry.error().message;
  daemon::SessionsConfig config;
  config.state_dir = top_ / "state";
  config.run_dir = top_ / "run";
  config.mount_root = top_ / "mnt";
  config.skills_dirs = {top_ / "skills"};
  config.workdir_allow_roots = {top_ / "projects"};
  config.snapshots = false;
  sessions_ = std::make_unique<daemon::Sessions>(std::move(config), mounts_.backends(), std::move(*registry),
                                                 events_);
  ASSERT_TRUE(sessions_->start(std::move(kept_devices)));
}

daemon::Session& SessionsOnFakes::create(const std::string& id) {
  daemon::CreateRequest request;
  request.id = id;
  auto created = sessions_->create(root_, std::move(request));
  if (!created) throw std::runtime_error(created.error().message);
  return *created->session;
}

Result<daemon::Sessions::Created> SessionsOnFakes::create_agent(const std::string& agent,
                                                                const std::string& parent) {
  daemon::CreateRequest request;
  request.agent = agent;
  request.parent_agent = parent;
  return sessions_->create(root_, std::move(request));
}

std::optional<daemon::SessionRecord> SessionsOnFakes::row(const std::string& id) {
  auto loaded = sessions_->registry().load();
  for (auto& record : loaded->sessions)
    if (record.id.text() == id) return std::move(record);
  return std::nullopt;
}

void SessionsOnFakes::run_sql(const std::string& sql) {
  sqlite3* connection = nullptr;
  ASSERT_EQ(sqlite3_open((top_ / "state/sessions.db").c_str(), &connection), SQLITE_OK);
  char* message = nullptr;
  EXPECT_EQ(sqlite3_exec(connection, sql.c_str(), nullptr, nullptr, &message), SQLITE_OK) << message;
  sqlite3_free(message);
  sqlite3_close(connection);
}

void SessionsOnFakes::refuse_changes() {
  run_sql("CREATE TRIGGER refuse BEFORE UPDATE ON sessions BEGIN SELECT RAISE(ABORT, 'refused'); END");
}

}  // namespace okcvm::test
