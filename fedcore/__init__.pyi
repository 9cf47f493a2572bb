from fedcore.interface.compare import compare as compare
from fedcore.interface.federated_mixture import FederatedMixture as FederatedMixture
from fedcore.interface.functions import budget as budget
from fedcore.interface.functions import open_population as open_population
from fedcore.interface.functions import plan as plan
from fedcore.interface.functions import resume as resume
from fedcore.interface.functions import set_budget as set_budget
from fedcore.interface.functions import train as train
from fedcore.interface.mixtures import PrivateMixture as PrivateMixture
from fedcore.interface.model import load_run as load_run
from fedcore.interface.multi_task import RobustMultiTaskMixture as RobustMultiTaskMixture
from fedcore.interface.personal import PersonalDictionaries as PersonalDictionaries
from fedcore.interface.personal import PersonalHistograms as PersonalHistograms
from fedcore.interface.plots import plot_components as plot_components
from fedcore.interface.plots import plot_scores as plot_scores

__version__: str
WHERE: dict[str, str]
