"""What `import fedcore` offers to Python programs and notebooks: functions, trained models, estimators.

functions   open_population, train, resume, load_run, plan, budget, set_budget
model       a trained run as values, tables and outputs
compare     two models on the same rows
plots       pictures of mixtures, by matplotlib
data        arrays and files, as populations
frames      data frames of any library, as arrays
estimator   what the estimators share
private     fits that are charged to a budget
federated_mixture   FederatedMixture, after scikit-learn's GaussianMixture
densities, starts   what it computes of rows, and what it starts from if it is given that
mixtures    PrivateMixture
multi_task  RobustMultiTaskMixture
personal    PersonalHistograms, PersonalDictionaries

Everything runs on the engine, the stores and the ledger that the command line uses, in this process or on a given
backend; without Prefect.
"""
