"""Every reason a thing can be rejected, undefined, refused, skipped or resolved: {code: sentence}. The only list."""

REJECTED = {
    "malformed": "The line or item is not valid JSON or CSV.",
    "missing_field": "A required field is absent.",
    "type": "A field has the wrong type; numbers must not be sent as strings.",
    "not_finite": "A number is NaN or infinite.",
    "out_of_range": "The score lies more than 1e-9 outside [0, 1].",
    "scores": "A model with classes needs a number for each in `scores`, another one `score` alone.",
    "sum": "The scores of the classes sum to something farther from 1 than `sum_tolerance`.",
    "unknown_class": "The model has no such class.",
    "label_class": "The label is neither 0 nor 1.",
    "null_label": "The label is null, which means still unlabelled; send it once it is known.",
    "timestamp": "The timestamp is neither ISO-8601 nor an epoch number in s, ms, us or ns between 2000 and 2100.",
    "future": "The timestamp is more than five minutes ahead of the clock.",
    "too_old": "The day of the prediction is past its horizon and its corrections period.",
    "no_model": "The label names no model although several are configured.",
    "unknown_model": "The model is not in the configuration.",
    "unknown_id": "No waiting prediction has this id, and none that the label could wait for.",
    "not_sampled": "The prediction did not wait for its label, so the sample is without it.",
    "label_prob": "The probability that the label is looked for is not between 1e-6 and 1, or not the one that was given before.",
    "unknown_policy": "The event names a policy that the agent does not have.",
    "too_many_versions": "The model already has as many versions as the agent follows.",
    "id": "The id is empty or longer than 256 characters.",
    "unsupported": "The field is known but not supported yet.",
}

UNDEFINED = {
    "no_events": "No prediction falls into the window.",
    "no_mature_days": "No day of the window is mature yet.",
    "no_days_since": "No whole day since its calibrator came is mature yet.",
    "no_labels": "No label arrived for the window.",
    "incomplete": "Too few of the labels of the open days are in to say what they will be.",
    "unidentified": "Fewer than .8 of the labels came and nothing says how they were selected.",
    "one_class": "All outcomes of the window are of one class.",
    "no_positives": "The window has no positive outcome.",
    "no_negatives": "The window has no negative outcome.",
    "no_flagged": "Nothing was flagged in the window.",
    "no_threshold": "There is no policy, no configured threshold and no verdict in the events.",
    "no_policy_named": "No prediction names the policy that it followed.",
    "no_values": "Every value of the feature is missing or unseen.",
    "no_baseline": "The metric needs a baseline and there is none.",
    "degenerate": "All scores are exactly 0 or 1, so the logarithm has no meaning.",
    "separable": "The scores tell the classes apart or are all alike, so no slope is the most likely one.",
    "no_fit": "The scores are so extreme that no regression of the outcomes on them was found.",
    "no_high_confidence": "No row of the window has a confidence max(p, 1 - p) of .8 or more.",
    "no_errors": "In all rows of the window what the score calls likelier came true.",
    "low_n": "The window has fewer rows than the metric needs.",
    "prevented": "What was decided keeps the outcomes of some of the rows from ever being seen.",
    "few_days": "Fewer than seven days came before it to compare it with.",
    "low_traffic": "The version has at most .05 of its model's traffic, so none of the false-alarm budget is spent on it.",
    "few_outcomes": "The baseline has fewer than 200 positives or fewer than 200 negatives.",
    "few_scores": "The scores of the baseline take too few values to tell a change of prevalence from others.",
    "unseparated": "Both classes have the same scores in the baseline, so scores say nothing of prevalence.",
    "label_shift_rejected": "The scores cannot be explained by a change of prevalence alone.",
    "few_compared_days": "Fewer than 7 mature days have both an estimate made without labels and outcomes.",
    "other_target": "The scores of the two versions are probabilities of different outcomes.",
    "sampled": "Only a sample of the rows waits or is labelled, so rows that two versions scored are no fair choice.",
    "unseen_class": "A class has no row in the window, or all rows are of it.",
    "too_many_classes": "The model has more than 10 classes, and pairs of them are not counted.",
    "margin_scores": "The scores are margins, which order rows but are no probabilities.",
    "few_audited_misses": "Fewer than 10 missed positives were found among the rows that are only sometimes looked at.",
}

NO_INTERVAL = {
    "label_shift_rejected": "The scores cannot be explained by a change of prevalence alone.",
    "few_clusters": "The rows come from fewer than 20 effective clusters.",
    "clustered": "The rows are clustered, and what that does to an interval or to evidence over days cannot be told.",
}

NOT_LOOKING = {
    "rule_off": "The rule of this detector is switched off.",
    "learning": "The baseline has fewer than 14 days, so how much days differ is learnt from the first 28 mature live days.",
    "coverage": "Far fewer labels than usual came for the day; it is looked at once they come.",
    "weighted": "The outcomes are weighted, and only whole rows can be evidence.",
}

RESOLVED = {
    "recovered": "The estimate is back inside the limit that resolves.",
    "dropped": "The limit was not passed for as long as the rule asks.",
    "version_gone": "The version has had no events for a day and has no waiting days.",
    "rolled_back": "The policy that was looked at is no longer current.",
    "established": "The policy has served for seven days since its activation.",
    "switched_off": "The rule is no longer configured, or the version no longer live.",
}

DECIDED = {
    "mode_off": "The mode is off: alerts do not act.",
    "proposed": "It waits for a person to approve it.",
    "applied": "The change won its trial on days it was not fitted to, and the mode is auto.",
    "not_validated": "Validation promised nothing for this version, so nothing is changed without a person.",
    "proposal_open": "A proposal for this version already waits for a person.",
    "rejected": "A person rejected a proposal for this version less than seven days ago.",
    "other_fault": "What is likely wrong lies in data or labels, and another calibrator would only hide it.",
    "quiet": "A policy was rolled back less than seven days ago.",
    "cooldown": "The policy changed less than one horizon ago, so nothing has matured under it.",
    "few_outcomes_yet": "Fewer mature rows have an outcome than `recalibrate.rows` asks for.",
    "volume": "The new policy would flag less than half or more than one and a half times what the current one flags.",
    "timeout": "The trial did not end within `recalibrate.limit`.",
    "trial_failed": "The trial ended with an error, which the agent's log has.",
    "overtaken": "The policy was changed while the trial was running, so its result is about another one.",
    "outserved": "An earlier policy would have served the outcomes since then better, by evidence of 20 to 1.",
    "sent": "It is handed on to the configured action.",
    "expired": "Nobody answered within seven days, and what it was tested on is too old by now.",
    "superseded": "The policy was changed in the meantime.",
    "no_policy": "No policy is being served, or the one that is cannot be read.",
    "no_good_standing": "No earlier policy is in good standing.",
    "already_rolled_back": "This activation was rolled back once already.",
    "shadow": "The version is not live; a shadow never acts.",
    "allowed": "Going back to the last policy in good standing is always allowed once per activation.",
    "failed": "The action failed and is tried again at every tick; the agent's log has the error.",
}

CHOSEN = {
    "wide_bound": "Fewer than 300 (effective) positives: what is kept is honest but cautious, and a person should look first.",
    "few_rows": "Fewer than 5,000 rows (effective ones): the best threshold of a sample is some percent off the best one.",
    "no_choice": "No threshold keeps the target with a confidence of 95 %.",
}

FITTED = {
    "few_positives": "There are fewer positives than this kind of calibrator takes.",
    "few_negatives": "There are fewer negatives than this kind of calibrator takes.",
    "few_of_class": "A class has fewer rows than this kind of calibrator takes.",
    "not_monotone": "What fits best does not rise with the score, so it would not keep the order of the rows.",
}

TRIED = {
    "accepted": "The calibrator serves days it was not fitted to better than the current one, by every check.",
    "few_blocks": "Fewer than five mature days have outcomes, and what is held out are whole days.",
    "no_improvement": "On days it was not fitted to the calibrator is not surely better than the current one in log loss.",
    "newest_worse": "On the newest days the calibrator serves worse than the current one.",
    "brier_worse": "The Brier score of the calibrator is higher than that of the current one.",
    "calibration_not_better": "The debiased calibration error of the calibrator is not lower than that of the current one.",
    "slice_worse": "The calibrator serves a slice worse than the current one.",
    "auc_changed": "The calibrator gives up some of the ranking by the scores.",
    "confidence_worse": "Scores with high confidence are wrong more often, and more often than they say.",
}

DELIVERED = {
    "delivered": "It was taken: the answer was 2xx, or the exit code 0.",
    "bad_status": "The answer was not 2xx; redirects are not followed.",
    "exit_code": "The program ended with another exit code than 0.",
    "unreachable": "The receiver or the program could not be reached.",
    "too_slow": "No answer came, or the program did not end, in time.",
    "no_secret": "The secret that signs the message cannot be read.",
    "gone": "The receiver answered 410: it wants no messages any more.",
    "argument": "A name would have become an option of the program.",
    "not_configured": "What it was for is no longer in the configuration.",
    "replaced": "A newer policy of the same version took its place.",
    "overflow": "More than 1,000 messages waited; the oldest are given up.",
    "forgotten": "More than 1,000 messages were dead; the oldest are forgotten.",
}

LEAKS = {
    "duplicate_id": "Rows have the same id, so they count twice or choose what they test; leave one row for each id.",
    "entity_in_two_roles": "Rows of one entity have different roles, so what is chosen on it is tested on it, too; give each"
    " entity one role, or take the column `entity` out where its rows have nothing in common.",
    "time_order": "Rows are earlier than rows of the role before, so the past is tested with what was chosen in its future; give"
    " calibration the oldest rows and test the newest (without the column `role` it is done so), or take `ts` out where time"
    " means nothing.",
}

BUILT = {
    "few_to_calibrate": "With fewer than 300 positives no calibrator is proposed.",
    "role": "The role is not calibration, selection or test.",
    "other_version": "The row names another model or version.",
    "no_objective": "No threshold and no objective to choose one for is configured.",
    "no_times": "The rows have no times, so cases a day are not known.",
}

REASONS = (
    REJECTED | UNDEFINED | NO_INTERVAL | NOT_LOOKING | RESOLVED | DECIDED | CHOSEN | FITTED | TRIED | LEAKS | BUILT | DELIVERED
)
