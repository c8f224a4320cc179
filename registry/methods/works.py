"""Publications that methods come from."""

from registry.composition.method import Work

DUME = Work(
    "fani2026dume",
    "Fanì, Eros and Ersoy, Oğuzhan",
    "Training-Free Dynamic Upcycling of Expert Language Models",
    "2603.29765",
)
BTX = Work(
    "sukhbaatar2024btx",
    "Sukhbaatar, Sainbayar and Golovneva, Olga and Sharma, Vasu and others",
    "Branch-Train-MiX: Mixing Expert LLMs into a Mixture-of-Experts LLM",
    "2403.07816",
)
REGMEAN = Work(
    "jin2022regmean",
    "Jin, Xisen and Ren, Xiang and Preoţiuc-Pietro, Daniel and Cheng, Pengxiang",
    "Dataless Knowledge Fusion by Merging Weights of Language Models",
    "2212.09849",
)
TIES = Work(
    "yadav2023ties",
    "Yadav, Prateek and Tam, Derek and Choshen, Leshem and Raffel, Colin and Bansal, Mohit",
    "TIES-Merging: Resolving Interference When Merging Models",
    "2306.01708",
)
DARE = Work(
    "yu2023dare",
    "Yu, Le and Yu, Bowen and Yu, Haiyang and Huang, Fei and Li, Yongbin",
    "Language Models are Super Mario: Absorbing Abilities from Homologous Models as a Free Lunch",
    "2311.03099",
)
TASK_ARITHMETIC = Work(
    "ilharco2022arithmetic",
    "Ilharco, Gabriel and Ribeiro, Marco Tulio and Wortsman, Mitchell and others",
    "Editing Models with Task Arithmetic",
    "2212.04089",
)
MERGEME = Work(
    "zhou2025mergeme",
    "Zhou, Yuhang and Karamanolakis, Giannis and Soto, Victor and others",
    "MergeME: Model Merging Techniques for Homogeneous and Heterogeneous MoEs",
    "2502.00997",
)
FLEXOLMO = Work(
    "shi2025flexolmo",
    "Shi, Weijia and Bhagia, Akshita and Farhat, Kevin and others",
    "FlexOlmo: Open Language Models for Flexible Data Use",
    "2507.07024",
)
SOUP_OF_EXPERTS = Work(
    "ablin2025soup",
    "Ablin, Pierre and Katharopoulos, Angelos and Seto, Skyler and Grangier, David",
    "Soup-of-Experts: Pretraining Specialist Models via Parameters Averaging",
    "2502.01804",
)
SIMOE = Work(
    "chen2025simoe",
    "Chen, Shengzhuang and Wei, Ying and Schwarz, Jonathan Richard",
    "Automatic Expert Discovery in LLM Upcycling via Sparse Interpolated Mixture-of-Experts",
    "2506.12597",
)
L0 = Work(
    "louizos2018sparse",
    "Louizos, Christos and Welling, Max and Kingma, Diederik P.",
    "Learning Sparse Neural Networks through L0 Regularization",
    "1712.01312",
)
MODEL_SOUPS = Work(
    "wortsman2022soups",
    "Wortsman, Mitchell and Ilharco, Gabriel and Gadre, Samir Yitzhak and others",
    "Model soups: averaging weights of multiple fine-tuned models improves accuracy",
    "2203.05482",
)
BTM = Work(
    "li2022btm",
    "Li, Margaret and Gururangan, Suchin and Dettmers, Tim and others",
    "Branch-Train-Merge: Embarrassingly Parallel Training of Expert Language Models",
    "2208.03306",
)
UPCYCLING = Work(
    "komatsuzaki2022upcycling",
    "Komatsuzaki, Aran and Puigcerver, Joan and Lee-Thorp, James and others",
    "Sparse Upcycling: Training Mixture-of-Experts from Dense Checkpoints",
    "2212.05055",
)
ROFORMER = Work(
    "su2021roformer",
    "Su, Jianlin and Lu, Yu and Pan, Shengfeng and Murtadha, Ahmed and others",
    "RoFormer: Enhanced Transformer with Rotary Position Embedding",
    "2104.09864",
)
LORA = Work(
    "hu2021lora",
    "Hu, Edward J. and Shen, Yelong and Wallis, Phillip and others",
    "LoRA: Low-Rank Adaptation of Large Language Models",
    "2106.09685",
)
DORA = Work(
    "liu2024dora",
    "Liu, Shih-Yang and Wang, Chien-Yi and Yin, Hongxu and others",
    "DoRA: Weight-Decomposed Low-Rank Adaptation",
    "2402.09353",
)
MARON = Work(
    "maron1961indexing",
    "Maron, M. E.",
    "Automatic Indexing: An Experimental Inquiry",
    where="Journal of the ACM 8(3), 404–417",
    year=1961,
)
SPARSEMAX = Work(
    "martins2016sparsemax",
    "Martins, André F. T. and Astudillo, Ramón F.",
    "From Softmax to Sparsemax: A Sparse Model of Attention and Multi-Label Classification",
    "1602.02068",
)
LEWIS = Work(
    "lewis1998naive",
    "Lewis, David D.",
    "Naive (Bayes) at Forty: The Independence Assumption in Information Retrieval",
    where="European Conference on Machine Learning, 4–15",
    year=1998,
)
