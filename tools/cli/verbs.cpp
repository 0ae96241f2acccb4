#include "tools/cli/verbs.h"

#include <array>

#include "tools/cli/handlers.h"

namespace okcvm::cli {

namespace {

const Argument kId{"ID", Kind::kSession};
const Argument kPath{"PATH", Kind::kSessionPath};
const Option kLimit{"limit", 'n', "N", "At most N rows.", Kind::kCount};
const Option kNames{"names", 0, "", "List what changed, without text diffs."};
const Option kForce{"force", 0, "", "Even while files are open in it."};
const Option kWorkdirPolicy{
    "workdir-policy",
    0,
    "POLICY",
    "managed: no directory; existing: DIR; repo-bound: DIR, or the remembered one, if it is a clone of URL.",
    Kind::kChoice,
    false,
    {"managed", "existing", "repo-bound"}};
const Option kDevice{"device-id", 0, "DEVICE",
                     "The device whose directory this is; remembered with the task."};
const Option kGitUrl{"git-url", 0, "URL", "The repository that a repo-bound workdir must be a clone of."};
const Option kBranch{"branch", 0, "BRANCH", "Its branch."};

std::vector<Verb> session_verbs() {
  const Group group = Group::kSessions;
  return {
      {"create",
       group,
       "Create and mount a session; prints its mount point",
       "The session belongs to whoever asks. Its backing folder is made by the first write. A workdir that "
       "may not be "
       "used does not fail the creation: the session is made without, and a note says why.",
       {},
       {{"id", 0, "ID", "Its name; by default its agent's, or eight random hex digits."},
        {"mode", 0, "MODE", "Permissions of the mount's root directory, in octal (0700)."},
        {"owner", 0, "UID[:GID]", "Whose it is (root only)."},
        {"label", 'l', "KEY=VALUE", "A label; may be given several times.", Kind::kText, true},
        {"skill", 's', "NAME", "A skill to load at once; may be given several times.", Kind::kSkill, true},
        {"agent", 0, "AGENT",
         "The agent it is for; a child of another agent than root shares its parent's session."},
        {"parent-agent", 0, "AGENT", "The agent that started it.", Kind::kAgent},
        {"task", 0, "TASK", "The task that the workdir is remembered for."},
        {"workdir", 'w', "DIR", "A directory of the host, shown as workdir/.", Kind::kHostDirectory},
        kWorkdirPolicy,
        kDevice,
        kGitUrl,
        kBranch},
       "POST /v1/sessions",
       run::create},
      {"list",
       group,
       "List sessions, the most recently used first",
       "",
       {},
       {{"prefix", 'p', "PREFIX", "Only ids that start so.", Kind::kSession},
        {"label", 'l', "KEY=VALUE", "Only sessions with this label."},
        kLimit},
       "GET /v1/sessions",
       run::list},
      {"info",
       group,
       "Everything about a session: state, owner, contents, use",
       "",
       {kId},
       {},
       "GET /v1/sessions/{id}/info",
       run::info},
      {"path", group, "Print a session's mount point", "", {kId}, {}, "GET /v1/sessions/{id}", run::path},
      {"label",
       group,
       "Set a session's labels, or show them",
       "Labels that are not named stay as they are.",
       {kId, {"KEY=VALUE", Kind::kText, true, true}},
       {{"remove", 'r', "KEY", "Remove this label; may be given several times.", Kind::kText, true}},
       "POST /v1/sessions/{id}/labels",
       run::label},
      {"load",
       group,
       "Mount a session again, named by the start of its id; prints its mount point",
       "",
       {{"PREFIX", Kind::kSession}},
       {},
       "POST /v1/sessions/{id}/mount",
       run::load},
      {"unmount",
       group,
       "Unmount a session; its files and snapshots stay",
       "",
       {kId},
       {kForce},
       "POST /v1/sessions/{id}/unmount",
       run::unmount},
      {"reset",
       group,
       "Empty a session's temp/ and drop its checkpoints; all else stays",
       "",
       {kId},
       {},
       "POST /v1/sessions/{id}/reset",
       run::reset},
      {"delete",
       group,
       "Delete a session with its files and snapshots",
       "Deleting what is not there is no error. The first 4 digits or more are enough of a "
       "generated id (8 hex digits); any other is named in full.",
       {kId},
       {},
       "DELETE /v1/sessions/{id}",
       run::remove},
      {"clean",
       group,
       "Delete sessions that were not used for some days",
       "Sessions with open files are kept. Anyone but root cleans only sessions of their own.",
       {},
       {{"older-than-days", 0, "N",
         "Not used for N days; by default okcvmd's --session-ttl-days (7), required where that is 0.",
         Kind::kNumber},
        {"dry-run", 0, "", "Only say which."}},
       "POST /v1/clean",
       run::clean},
      {"agents",
       group,
       "List the agents and the session each works in",
       "",
       {{"AGENT", Kind::kAgent, true}},
       {{"owner", 0, "UID", "Whose AGENT is meant, where several users have one (root only).",
         Kind::kNumber}},
       "GET /v1/agents",
       run::agents},
      {"workdir",
       group,
       "Bind another host directory to a session; prints the new working directory",
       "The mount is closed and opened again. Without PATH the directory remembered for the device is bound.",
       {kId, {"PATH", Kind::kHostDirectory, true}},
       {kWorkdirPolicy, kDevice, kGitUrl, kBranch, kForce},
       "POST /v1/sessions/{id}/workdir",
       run::workdir},
      {"workdirs",
       group,
       "List the host directories used lately",
       "",
       {},
       {kLimit},
       "GET /v1/workdirs",
       run::workdirs},
  };
}

std::vector<Verb> skill_verbs() {
  return {
      {"skills",
       Group::kSkills,
       "List the skills of this host, or those loaded into a session",
       "",
       {{"ID", Kind::kSession, true}},
       {},
       "GET /v1/skills",
       run::skills},
      {"skill load",
       Group::kSkills,
       "Show a skill, live and read-only, under a session's skills/",
       "",
       {kId, {"NAME", Kind::kSkill}},
       {},
       "POST /v1/sessions/{id}/skills",
       run::skill_load},
      {"skill unload",
       Group::kSkills,
       "Hide a skill again; files open in it stay readable",
       "",
       {kId, {"NAME", Kind::kLoadedSkill}},
       {},
       "DELETE /v1/sessions/{id}/skills/{name}",
       run::skill_unload},
  };
}

std::vector<Verb> file_verbs() {
  const Group group = Group::kFiles;
  return {
      {"upload",
       group,
       "Send files to a session's uploads/",
       "A name that is taken gets a number: report (1).pdf. FILE - is standard input. The files belong to "
       "who runs this.",
       {kId, {"FILE", Kind::kHostFile, false, true}},
       {{"name", 0, "NAME", "The name to give it (one FILE only)."}},
       "POST /v1/sessions/{id}/uploads",
       run::upload},
      {"read",
       group,
       "Write a file of a session to standard output",
       "",
       {kId, kPath},
       {},
       "GET /v1/sessions/{id}/files/{path}",
       run::read},
      {"write",
       group,
       "Write standard input to a file of a session, atomically",
       "Parent directories are made. What is new belongs to who runs this.",
       {kId, kPath},
       {{"from", 'f', "FILE", "Take the bytes from FILE instead.", Kind::kHostFile},
        {"mode", 0, "MODE",
         "Permissions in octal; by default those of the file that is replaced, else 0644."},
        {"if-match", 0, "ETAG", "Only if the file still is the one with this etag."},
        {"new", 0, "", "Only if there is no such file yet."}},
       "PUT /v1/sessions/{id}/files/{path}",
       run::write},
      {"rm",
       group,
       "Remove files of a session",
       "Ends with the first that cannot be removed.",
       {kId, {"PATH", Kind::kSessionPath, false, true}},
       {{"recursive", 'r', "", "Directories, too, with all that is in them."}},
       "DELETE /v1/sessions/{id}/files/{path}",
       run::rm},
      {"ls",
       group,
       "List a directory of a session",
       "",
       {kId, {"PATH", Kind::kSessionPath, true}},
       {},
       "GET /v1/sessions/{id}/files/{path}",
       run::ls},
      {"resolve",
       group,
       "Say where a path leads; prints it as seen through the mount",
       "",
       {kId, kPath},
       {{"mode",
         0,
         "MODE",
         "strict: relative paths only; rebase: absolute paths and backslashes are taken to be inside; "
         "physical: walked as the kernel walks, links and '..' as they come.",
         Kind::kChoice,
         false,
         {"strict", "rebase", "physical"}},
        {"must-exist", 0, "", "Fail if nothing is there."},
        {"for-write", 0, "", "Fail if it may not be written to."}},
       "POST /v1/sessions/{id}/resolve",
       run::resolve},
  };
}

std::vector<Verb> snapshot_verbs() {
  const Group group = Group::kSnapshots;
  const Argument snap{"SNAP", Kind::kSnapshot};
  return {
      {"snapshot",
       group,
       "Take a snapshot of uploads/, outputs/ and temp/; prints its id",
       "Without a label, and if nothing changed, the newest snapshot is the answer.",
       {kId},
       {{"label", 'm', "LABEL", "What it is, for the list."}},
       "POST /v1/sessions/{id}/snapshots",
       run::snapshot},
      {"snapshots",
       group,
       "List a session's snapshots, newest first",
       "",
       {kId},
       {kLimit},
       "GET /v1/sessions/{id}/snapshots",
       run::snapshots},
      {"show",
       group,
       "Show a snapshot and what it changed",
       "",
       {kId, snap},
       {kNames},
       "GET /v1/sessions/{id}/snapshots/{snapshot}",
       run::show},
      {"diff",
       group,
       "Show what differs between two snapshots, or a snapshot and now",
       "FROM defaults to the newest snapshot, TO to what is there now. A added, D removed, M changed, R "
       "renamed, T only "
       "mode, times or attributes.",
       {kId, {"FROM", Kind::kSnapshot, true}, {"TO", Kind::kSnapshot, true}},
       {kNames},
       "GET /v1/sessions/{id}/diff",
       run::diff},
      {"restore",
       group,
       "Put a session, or some paths of it, back as they were in a snapshot",
       "In place: the mount, working directories and open files stay valid. What was there is kept as a "
       "snapshot first.",
       {kId, snap, {"PATH", Kind::kSessionPath, true, true}},
       {{"dry-run", 0, "", "Only say what would change."}},
       "POST /v1/sessions/{id}/restore",
       run::restore},
      {"undo",
       group,
       "Go back to before the last restore",
       "The last that changed anything. What is there is kept as a snapshot first.",
       {kId},
       {},
       "POST /v1/sessions/{id}/undo",
       run::undo},
      {"fork",
       group,
       "Make a new session out of a snapshot; prints its mount point",
       "Without SNAP, out of what is there now; then the session must be mounted.",
       {kId, {"SNAP", Kind::kSnapshot, true}},
       {{"id", 0, "ID", "The new session's name; by default eight random hex digits."}},
       "POST /v1/sessions/{id}/fork",
       run::fork},
      {"verify",
       group,
       "Check every object of a session's snapshots, and compare with what is there",
       "Fails if an object is missing or damaged. Differences from what is there are only shown.",
       {kId},
       {{"snapshot", 0, "SNAP", "Compare with this one; by default the newest.", Kind::kSnapshot}},
       "GET /v1/sessions/{id}/verify",
       run::verify},
  };
}

std::vector<Verb> conversation_verbs() {
  const Group group = Group::kConversation;
  return {
      {"adapt-prompt",
       group,
       "Rewrite the old mount paths in a prompt to a session's own (standard input to output)",
       "",
       {kId},
       {},
       "POST /v1/sessions/{id}/adapt-prompt",
       run::adapt_prompt},
      {"checkpoint save",
       group,
       "Keep a conversation's state (a JSON document); prints the checkpoint's id",
       "FILE defaults to standard input.",
       {kId, {"FILE", Kind::kHostFile, true}},
       {{"id", 0, "ID", "The checkpoint's name."},
        {"parent", 0, "CHECKPOINT", "The one it follows; by default the current one.", Kind::kCheckpoint},
        {"snapshot", 0, "SNAP", "The snapshot that belongs to it.", Kind::kSnapshot},
        {"with-snapshot", 0, "", "Take that snapshot now."}},
       "POST /v1/sessions/{id}/checkpoints",
       run::checkpoint_save},
      {"checkpoint load",
       group,
       "Print a checkpoint's document, by default the current one",
       "",
       {kId, {"CHECKPOINT", Kind::kCheckpoint, true}},
       {{"restore", 0, "", "Also go back to it: it becomes the current one, and its snapshot is restored."}},
       "GET /v1/sessions/{id}/checkpoints/{checkpoint}",
       run::checkpoint_load},
      {"checkpoint list",
       group,
       "List a session's checkpoints, newest first",
       "",
       {kId},
       {kLimit},
       "GET /v1/sessions/{id}/checkpoints",
       run::checkpoint_list},
  };
}

std::vector<Verb> host_verbs() {
  const Group group = Group::kHost;
  return {
      {"status",
       group,
       "Show the daemon's health and main settings",
       "",
       {},
       {},
       "GET /v1/health",
       run::status},
      {"top",
       group,
       "Watch sessions at work, the busiest first",
       "Requests are those that reached the daemon: reads and writes of open files usually do not. Where "
       "standard output is no terminal, prints one table, for one interval, and ends, unless --count says "
       "otherwise.",
       {},
       {{"interval", 'i', "SECONDS", "Between two looks (2).", Kind::kNumber},
        {"count", 'c', "N", "End after N tables.", Kind::kNumber},
        kLimit},
       "GET /v1/sessions",
       run::top},
      {"events",
       group,
       "Print what happens, as it happens, until interrupted",
       "Without ID, in every session. If the daemon dies, the next one is asked.",
       {{"ID", Kind::kSession, true}},
       {{"count", 'c', "N", "End after N events.", Kind::kCount}},
       "GET /v1/events",
       run::events},
      {"doctor",
       group,
       "Look at this host: device, kernel, rights, file system, mounts; needs no daemon",
       "Each finding comes with its remedy. Fails if okcvmd could not work here.",
       {},
       {{"state-dir", 0, "DIR", "Where the daemon keeps, or would keep, its state (/var/lib/okcvm).",
         Kind::kHostDirectory},
        {"mount-root", 0, "DIR", "Where sessions are mounted (/mnt).", Kind::kHostDirectory}},
       "",
       run::doctor},
      {"completion",
       group,
       "Print a completion script for a shell",
       "For one shell: eval \"$(okcvm completion bash)\".",
       {{"SHELL", Kind::kChoice, false, false, {"bash", "zsh", "fish"}}},
       {},
       "",
       run::completion},
      {"help",
       group,
       "Explain okcvm, or one verb",
       "",
       {{"VERB", Kind::kVerb, true, true}},
       {{"man", 0, "", "Print the manual page in man(7) markup."}},
       "",
       run::help},
      {"version", group, "Print okcvm's version", "", {}, {}, "", run::version},
  };
}

}  // namespace

std::string_view title_of(Group group) {
  constexpr std::array<std::string_view, 6> kTitles{"Sessions",  "Skills",       "Files",
                                                    "Snapshots", "Conversation", "Host"};
  return kTitles[static_cast<std::size_t>(group)];
}

const std::vector<Verb>& verbs() {
  static const std::vector<Verb> kVerbs = [] {
    std::vector<Verb> all;
    for (auto part :
         {session_verbs(), skill_verbs(), file_verbs(), snapshot_verbs(), conversation_verbs(), host_verbs()})
      for (auto& verb : part) all.push_back(std::move(verb));
    return all;
  }();
  return kVerbs;
}

const std::vector<Option>& common_options() {
  static const std::vector<Option> kOptions{
      {"json", 0, "", "Print JSON for programs."},
      {"socket", 0, "PATH", "The daemon's socket; else OKCVM_SOCKET, else /run/okcvm/control.sock.",
       Kind::kHostFile},
      {"help", 'h', "", "Explain this verb."}};
  return kOptions;
}

const Verb* find_verb(std::string_view name) {
  for (const auto& verb : verbs())
    if (verb.name == name) return &verb;
  return nullptr;
}

}  // namespace okcvm::cli
