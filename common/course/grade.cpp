#include "common/course/grade.hpp"

#include <algorithm>

#include "common/cli/error.hpp"
#include "common/course/process.hpp"

namespace flash_steps::course {

int Grade::points() const {
  int sum = 0;
  for (const Verdict& verdict : verdicts) sum += verdict.points;
  return sum;
}

int Grade::most_points() const {
  int sum = 0;
  for (const Verdict& verdict : verdicts) sum += verdict.most_points;
  return sum;
}

Grade start_grade(const Project& project, const std::string& name,
                  const CheckSettings& settings, const std::string& why) {
  Grade grade;
  grade.submission = name;
  grade.seed = settings.seed;
  for (const std::string& id : project.manifest.ids()) {
    const GradedRegion& region = project.manifest.region(id);
    Verdict& verdict = grade.verdicts.emplace_back();
    verdict.id = id;
    verdict.lines = {"not graded: " + why};
    if (region.needs != Needs::gpu || settings.gpu) {
      verdict.most_points = region.points + region.traffic_points;
    }
  }
  return grade;
}

Grade grade(const Project& project, const Submission& submission, const CheckSettings& settings,
            const std::function<void(const Grade&)>& so_far) {
  const double began = now_seconds();
  Grade result = start_grade(project, submission.name, settings);
  result.changed_outside = submission.changed_outside;
  Checker checker(project, settings);
  const std::vector<Chapter>& chapters = project.manifest.chapters;
  const auto take = [&](const Verdict& verdict) {
    *std::find_if(result.verdicts.begin(), result.verdicts.end(),
                  [&](const Verdict& v) { return v.id == verdict.id; }) = verdict;
    result.seconds = now_seconds() - began;
    if (so_far) so_far(result);
  };
  for (auto chapter = chapters.rbegin(); chapter != chapters.rend(); ++chapter) {
    checker.check_chapter(submission, *chapter, take);
  }
  return result;
}

std::vector<fs::path> find_submissions(const Project& project, const fs::path& directory) {
  if (!fs::is_directory(directory)) {
    throw cli::UsageError(directory.string() + " is no directory");
  }
  if (holds_answers(project, directory)) return {directory};
  std::vector<fs::path> found;
  bool any = false;  // whether somebody handed in something
  for (const auto& entry : fs::directory_iterator(directory)) {
    std::error_code error;
    if (!entry.is_directory(error) || entry.path().filename().string().front() == '.') continue;
    found.push_back(entry.path());
    any = any || holds_answers(project, find_submission(entry.path()));
  }
  std::sort(found.begin(), found.end());
  if (!any) {
    throw cli::UsageError("no submission in " + directory.string() +
                          ": it has no file of the exercises, nor has any folder in it");
  }
  return found;
}

}  // namespace flash_steps::course
