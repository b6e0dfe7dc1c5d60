window.SpeculoscopeLearn = {
  Replay, simulate, bestSplit, iterationCost, withCosts, cutChain, parseLane, makePolicy, POLICIES, Written, expectedTokens, modelSpeedup,
  breakEven, pieces, RunModel, stepsOf, iterationSentence, FACTS, factsOf, fill, isRight, answersOf, packRun, unpackRun,
  mount: (root, options) => new Learn(root, options), mountPage,
};
